"""The channels of another library that a client's waiters follow: one for each name, on the client's one subscription.

Theory of operation
-------------------
`Topics` knows which channels are wanted. A transport sends the difference to what it has sent on its present
connection, and waits for no reply. The server confirms each subscription by a push. A confirmation is news, as a
message is: a release before it was not heard, so the waiters must claim again. A refusal is news, too: they give up.

Each SUBSCRIBE and UNSUBSCRIBE has one channel. So it has exactly one reply, a push or an error, in the order of all
replies, and no reply reaches another command.

Each channel has a version, which changes with each news of it, and is 0 while it is not confirmed. A waiter reads it
before its claim, and compares it before it sleeps. So news that came while its claim was under way are not lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from leasehold._runtimes.base import Runtime
from leasehold.stores.redis.connection.base import ReplyError, pack
from leasehold.stores.redis.connection.replies import OnReply

CONFIRMATIONS = (b"subscribe", b"unsubscribe")
"""The pushes that are replies."""


class Flushing(Protocol):
    """A transport that sends what `Topics.changes` returns."""

    def flush(self) -> None:
        """Send the changes, if there is a connection; else the next connection sends them."""
        ...


class Topics:
    """The channels of one client. Used from many threads at once."""

    def __init__(self, runtime: Runtime, on_news: Callable[[bytes], None]) -> None:
        """Begin without channels; ``on_news`` is called with a channel that has news, in the thread that reads."""
        self._runtime = runtime
        self._on_news = on_news
        self._transport: Flushing | None = None
        self.clear()

    def clear(self) -> None:
        """Begin anew, as in a forked child."""
        self._mutex = self._runtime.mutex()
        self._followers: dict[bytes, set[str]] = {}
        self._connection: object = None  # on which ``_sent`` was sent
        self._sent: set[bytes] = set()
        self._versions: dict[bytes, int] = {}
        self._refusals: dict[bytes, ReplyError] = {}
        self._count = 0

    def attach(self, transport: Flushing) -> None:
        """Send through this transport from now on."""
        self._transport = transport

    # --- for waiters -----------------------------------------------------------------------------------------------

    def follow(self, channel: bytes, ticket: str) -> None:
        """Subscribe, for a ticket."""
        with self._mutex:
            followers = self._followers.setdefault(channel, set())
            followers.add(ticket)
            known = channel in self._sent
        if not known and self._transport is not None:
            self._transport.flush()

    def unfollow(self, channel: bytes, ticket: str) -> None:
        """Unsubscribe, if no other ticket follows the channel."""
        with self._mutex:
            followers = self._followers.get(channel)
            if followers is None:
                return
            followers.discard(ticket)
            if followers:
                return
            del self._followers[channel]
            if self._refusals.pop(channel, None) is not None:
                self._sent.discard(channel)  # so that the next follower asks again
        if self._transport is not None:
            self._transport.flush()

    def followers(self, channel: bytes) -> list[str]:
        """Return the tickets that follow the channel."""
        with self._mutex:
            return list(self._followers.get(channel, ()))

    def version(self, channel: bytes) -> int:
        """Return the version of a channel, 0 if no message on it would be heard."""
        return self._versions.get(channel, 0)

    def refusal(self, channel: bytes) -> ReplyError | None:
        """Return the error with which the server has refused the subscription; None if it has not."""
        return self._refusals.get(channel)

    # --- for transports --------------------------------------------------------------------------------------------

    def changes(self, transport: Flushing, connection: object) -> Sequence[tuple[bytes, OnReply]]:
        """Return the commands that a transport must send now on its connection, each with what takes its one reply."""
        if transport is not self._transport:
            return ()  # one that was left for another server
        with self._mutex:
            if connection is not self._connection:
                self._begin(connection)
            wanted = self._followers.keys()
            new, old = wanted - self._sent, self._sent - wanted
            self._sent = set(wanted)
            for channel in old:
                self._versions.pop(channel, None)
        return [
            *((pack(b"UNSUBSCRIBE", channel), lambda reply, failure: None) for channel in old),
            *((pack(b"SUBSCRIBE", channel), partial(self._answered, connection, channel)) for channel in new),
        ]

    def push(self, connection: object, push: list[Any]) -> None:
        """Take a push of the server on a connection."""
        kind, channel = push[0], push[1]
        with self._mutex:
            if connection is not self._connection or channel not in self._sent:
                return
            if kind not in (b"subscribe", b"message") or (kind == b"message" and channel not in self._versions):
                return
            self._count += 1
            self._versions[channel] = self._count
        self._on_news(channel)

    def lost(self) -> None:
        """Forget what was subscribed: the connection has ended."""
        with self._mutex:
            self._begin(None)

    def _begin(self, connection: object) -> None:
        self._connection, self._sent, self._versions, self._refusals = connection, set(), {}, {}

    def _answered(self, connection: object, channel: bytes, reply: Any, failure: object) -> None:
        """Take the reply to a subscription: a refusal, or the push, which `push` has taken."""
        if not isinstance(reply, ReplyError):
            return
        with self._mutex:
            if connection is not self._connection or channel not in self._followers:
                return
            self._refusals[channel] = reply
        self._on_news(channel)
