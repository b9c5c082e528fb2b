"""PostgreSQL, MySQL and MariaDB servers for tests."""
