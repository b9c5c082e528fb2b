"""Locks: exclusive, re-entrant, read-write, semaphore, and several locks at once."""
