"""Talking to one Redis server: redis-py connects and shakes hands, then pre-packed bytes go over connections of ours."""
