"""Runtimes for tests: virtual time, and a network inside it."""
