"""Connections to one Redis server: redis-py connects and authenticates, then our code sends and receives."""
