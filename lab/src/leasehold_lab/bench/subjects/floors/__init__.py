"""Floors: the least that a lock must do on a server, as bare commands."""
