"""Talking to one Redis server: redis-py connects and shakes hands, then packed bytes go over connections of ours."""
