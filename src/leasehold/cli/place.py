"""Which store a command works on: the URL as the environment or the user gives it, and as it may be shown."""

from __future__ import annotations

import os

from leasehold.stores.registry import default_path
from leasehold.stores.url import parse


def url_in_use(url: str | None) -> str:
    """Return the URL that `Client.from_url` takes. It may hold a password."""
    return url if url is not None else os.environ.get("LEASEHOLD_URL") or f"sqlite:{default_path()}"


def shown(url: str | None) -> str:
    """Return the URL without password and options, for people."""
    return str(parse(url_in_use(url)))
