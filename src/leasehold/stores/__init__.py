"""Stores: one file or folder is one kind of coordination system."""
