"""What a contestant's module offers, so that all are driven by the same loops.

``blocking(scope)`` and ``awaiting(scope)`` (a coroutine) open a session; ``prepare(scope, name)``, if there, makes a
name ready for hand-over. A turn is a pair of callables: the first acquires and returns something true, the other
releases.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import unquote, urlsplit

LEASE = 30
"""Seconds for which every contestant that can holds its lock at most."""

Turn = tuple[Callable[[], object], Callable[[], object]]
AsyncTurn = tuple[Callable[[], Awaitable[object]], Callable[[], Awaitable[object]]]


@dataclass(frozen=True, slots=True)
class Scope:
    """Where a session works.

    Attributes:
        url: the server; for several that know nothing of each other ``redlock://`` with all hosts.
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
        """Return the key of a name, for those who have no namespaces."""
        return f"{self.namespace}:{name}"


class Turns(Protocol):
    """A client that takes turns, called by threads: all that hand-over asks of a contestant."""

    def turn(self, name: str) -> Turn:
        """Return how to acquire and release ``name``; called in the thread that will do so."""
        ...

    def close(self) -> None:
        """Close connections."""
        ...


class Session(Turns, Protocol):
    """A contestant's client, called by threads."""

    def refused(self, name: str) -> bool:
        """Try once, as somebody else, to get ``name``; say whether it was refused."""
        ...


class AsyncTurns(Protocol):
    """A client that takes turns, called by tasks."""

    async def turn(self, name: str) -> AsyncTurn:
        """Return how to acquire and release ``name``."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...


class AsyncSession(AsyncTurns, Protocol):
    """A contestant's client, called by tasks."""

    async def refused(self, name: str) -> bool:
        """Try once, as somebody else, to get ``name``; say whether it was refused."""
        ...
