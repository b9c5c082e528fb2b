"""Talking to MySQL and MariaDB: PyMySQL and asyncmy connect; connections, their pool and their deadlines are ours."""
