"""Observers: one file is one sink for events."""
