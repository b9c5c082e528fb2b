"""The URL of the store that a command uses, and the form of it that may be printed."""

from __future__ import annotations

import os
from dataclasses import replace

from leasehold._url import parse
from leasehold.store_api import Opener
from leasehold.stores.registry import default_path, hide, opener


def url_in_use(url: str | None) -> str:
    """Return the URL that `Client.from_url` takes. It may contain a password."""
    return url if url is not None else os.environ.get("LEASEHOLD_URL") or f"sqlite:{default_path()}"


def shown(url: str | None) -> str:
    """Return the URL without password and options, for people."""
    return str(parse(url_in_use(url)))


def guarded(url: str, guard: int) -> Opener:
    """Return what opens the store at ``url`` for `run`, whose guard process ends after all that the command started.

    SQLite notices the death of a process, so it watches the guard. All others notice the end of a lease or a session.
    """
    found = opener(hide(url))
    if parse(url).scheme == "sqlite":
        from leasehold.stores.sqlite import SQLite
        from leasehold.stores.sqlite.machine import Machine

        assert isinstance(found, SQLite)
        return replace(found, machine=Machine(guard=guard))
    return found
