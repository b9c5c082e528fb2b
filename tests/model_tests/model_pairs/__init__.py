"""Pairs of a model and a real server, which get the same requests."""
