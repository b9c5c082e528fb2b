"""The fixtures of these tests."""

from ui_console import apart, locks, pool, served

from support.browsers import browser, opened
from support.pictures import pictures

__all__ = ["apart", "browser", "locks", "opened", "pictures", "pool", "served"]
