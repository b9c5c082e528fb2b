"""The fixture of these tests."""

from web_calls import site

__all__ = ["site"]
