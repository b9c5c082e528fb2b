"""The fixtures of these tests."""

from top_views import client, locks

from support.pictures import pictures

__all__ = ["client", "locks", "pictures"]
