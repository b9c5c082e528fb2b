"""PostgreSQL's wire: libpq through psycopg, one algorithm for both colours."""
