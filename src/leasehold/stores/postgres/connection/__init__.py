"""PostgreSQL's transport: libpq through psycopg, one algorithm for both flavors."""
