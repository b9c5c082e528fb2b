"""The interface of a contestant's module, so that all run in the same loops.

``blocking(scope)`` and ``awaiting(scope)`` (a coroutine) open a session. ``prepare(scope, name)`` is optional and
prepares a name for hand-over. A turn is a pair of callables: the first acquires and returns a true value, the other
releases.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import unquote, urlsplit

LEASE = 30
"""Seconds of the lease of every contestant that supports one."""

Turn = tuple[Callable[[], object], Callable[[], object]]
AsyncTurn = tuple[Callable[[], Awaitable[object]], Callable[[], Awaitable[object]]]


@dataclass(frozen=True, slots=True)
class Scope:
    """Where a session works.

    Attributes:
        url: the server; for several independent servers ``redlock://`` with all hosts.
        namespace: part of every key.
        concurrency: how many threads, tasks or processes there are.
        folder: for files.

    """

    url: str
    namespace: str
    concurrency: int
    folder: str

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        parts = urlsplit(self.url)
        return parts.hostname or "localhost", parts.port or 6379

    @property
    def urls(self) -> list[str]:
        """The URLs of the Redis servers, one each."""
        scheme, _, rest = self.url.partition("://")
        if scheme != "redlock":
            return [self.url]
        there, _, database = rest.partition("/")
        user, at, hosts = there.rpartition("@")
        return [f"redis://{user}{at}{host}/{database}" for host in hosts.split(",")]

    @property
    def database(self) -> int:
        """Number of the database."""
        return int(urlsplit(self.url).path.strip("/") or 0)

    @property
    def credentials(self) -> tuple[str, str] | None:
        """User and password, if there is a password."""
        parts = urlsplit(self.url)
        return (unquote(parts.username or "default"), unquote(parts.password)) if parts.password else None

    def key(self, name: str) -> str:
        """Return the key of a name, for contestants without namespaces."""
        return f"{self.namespace}:{name}"


class Turns(Protocol):
    """A client for threads that acquires and releases: all that hand-over needs of a contestant."""

    def turn(self, name: str) -> Turn:
        """Return the turn for ``name``; called in the thread that will use it."""
        ...

    def close(self) -> None:
        """Close connections."""
        ...


class Session(Turns, Protocol):
    """A contestant's client for threads."""

    def refused(self, name: str) -> bool:
        """Try once, as another client, to acquire ``name``; return whether it was refused."""
        ...


class AsyncTurns(Protocol):
    """A client for tasks that acquires and releases."""

    async def turn(self, name: str) -> AsyncTurn:
        """Return the turn for ``name``."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...


class AsyncSession(AsyncTurns, Protocol):
    """A contestant's client for tasks."""

    async def refused(self, name: str) -> bool:
        """Try once, as another client, to acquire ``name``; return whether it was refused."""
        ...
