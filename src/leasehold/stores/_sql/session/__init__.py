"""Locks with ``mode=session`` on SQL servers: the connection itself holds the lock."""
