"""The tables of stores on database servers: `create` creates them, or your migrations run the SQL of `script`.

``leasehold init URL`` does the same from the shell. No client creates a table by itself.
"""

from __future__ import annotations

from typing import cast

from leasehold._runtimes.aio import AsyncioRuntime
from leasehold._runtimes.base import Runtime, run_sync
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold._url import Secret
from leasehold.stores import registry
from leasehold.stores._sql.openers import SQLOpener

__all__ = ["create", "create_async", "script"]


class NoTables(ValueError):
    """The URL names a store that has no tables."""


def create(url: str | None = None) -> bool:
    """Create the tables in the database at ``url`` (None: ``LEASEHOLD_URL``), or upgrade those of an earlier version.

    Its user needs the right to create tables; the users of locks do not. Calling it twice is harmless. Clients of the
    earlier version acquire nothing more after an upgrade, see the page of the database.

    Returns:
        Whether any was missing, or of an earlier layout.

    Raises:
        ValueError: the URL is malformed, or names a store that has no tables.
        StoreUnavailable: they could not be created.
    """
    hidden = registry.hide(url)
    del url
    return run_sync(_create(hidden, BlockingRuntime()))


async def create_async(url: str | None = None) -> bool:
    """Create the tables as `create` does, without blocking the event loop."""
    hidden = registry.hide(url)
    del url
    return await _create(hidden, AsyncioRuntime())


def script(url: str | None = None) -> str:
    """Return the SQL that creates the tables, for the kind of server that ``url`` names. Nothing is sent."""
    hidden = registry.hide(url)
    del url
    return _opener(hidden).script()


async def _create(hidden: Secret, runtime: Runtime) -> bool:
    try:
        return await _opener(hidden).prepare(runtime)
    finally:
        runtime.close()


def _opener(hidden: Secret) -> SQLOpener:
    opener = registry.opener(hidden)
    if not hasattr(opener, "prepare"):
        scheme = hidden.reveal().partition(":")[0]
        raise NoTables(f"{scheme}: needs no tables; it is ready to use")
    return cast("SQLOpener", opener)
