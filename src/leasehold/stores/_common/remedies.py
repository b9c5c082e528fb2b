"""Messages about a store's failure: what the driver or the server said, and what to do."""

from __future__ import annotations


def with_remedy(said: str, remedy: str) -> str:
    """Join the two. Texts of drivers and servers may end with punctuation of their own, as "Connection refused."."""
    return f"{said.rstrip(' .;:,')}; {remedy}"
