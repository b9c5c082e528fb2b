"""The channels of another library that a client's waiters follow: one for each name, on the client's one subscription.

Theory of operation
-------------------
`Topics` knows which channels are wanted. A transport sends the difference to what it has sent on its present
connection, and waits for no reply. The server confirms each subscription by a push. A confirmation is news, as a
message is: an earlier release was not reported, so the waiters must claim again. A refusal is news, too: they give up.

Each SUBSCRIBE and UNSUBSCRIBE has one channel. So it has exactly one reply, a push or an error, in the order of all
replies, and no reply reaches another command.

On a cluster a channel belongs to the shard of its slot, from Redis 7.0 on, and has commands of its own. When the slot
leaves the node, the node says so by the same push that confirms SUNSUBSCRIBE. So that push never counts as a reply:
behind each SUNSUBSCRIBE there is a HELLO, whose reply is never an error. Where an error comes first, it is that of
SUNSUBSCRIBE. A slot that has left is news, for all who follow its channels: their claims are led to its new node.

Each channel has a version, which changes with each news of it, and is 0 while it is not confirmed. A waiter reads it
before its claim, and compares it before it sleeps. So news that came while its claim was under way are not lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from leasehold._runtimes.base import Runtime
from leasehold.stores.redis.connection.base import ASKING, HELLO, SHARDED_SINCE, ReplyError, pack, version_of
from leasehold.stores.redis.connection.replies import MESSAGES, SUBSCRIBED, OnReply, PendingReply

CONFIRMATIONS = (b"subscribe", b"unsubscribe", b"ssubscribe")
"""The pushes that are replies."""

LEFT = b"sunsubscribe"
"""The push that a slot has left the node with its channels, or that we have left the channel."""


class Connected(Protocol):
    """A connection: the commands on it that have no reply yet, oldest first."""

    pending: deque[PendingReply]


class Flushing(Protocol):
    """A transport that sends what `Topics.changes` returns."""

    def flush(self) -> None:
        """Send the changes, if there is a connection; else the next connection sends them."""
        ...

    def facts(self) -> dict[str, str]:
        """See `leasehold.stores.redis.connection.base.Transport`."""
        ...


class Topics:
    """The channels of one client. Used from many threads at once."""

    def __init__(self, runtime: Runtime, on_news: Callable[[bytes], None], *, in_shards: bool = False) -> None:
        """Begin without channels.

        Args:
            runtime: of the client.
            on_news: called with a channel that has news, in the thread that reads.
            in_shards: whether the server is a node of a cluster.
        """
        self._runtime = runtime
        self._on_news = on_news
        self._in_shards = in_shards
        self.asking = False
        """Whether the node is importing the slots of the channels, so that it must be asked to serve them."""
        self._transport: Flushing | None = None
        self.clear()

    def clear(self) -> None:
        """Begin anew, as in a forked child."""
        self._mutex = self._runtime.mutex()
        self._followers: dict[bytes, set[str]] = {}
        self._followed: dict[str, bytes] = {}  # by ticket
        self._connection: Connected | None = None  # on which ``_sent`` was sent
        self._sent: set[bytes] = set()
        self._asked: dict[bytes, int] = {}  # the number of each channel's last subscription, until its reply
        self._leaving: list[bytes] = []  # for each SUNSUBSCRIBE that may have no reply yet
        self._versions: dict[bytes, int] = {}
        self._refusals: dict[bytes, ReplyError] = {}
        self._count = 0

    def attach(self, transport: Flushing) -> None:
        """Send through this transport from now on."""
        self._transport = transport

    # --- for waiters -----------------------------------------------------------------------------------------------

    def follow(self, channel: bytes, ticket: str) -> None:
        """Subscribe, for a ticket, which follows no other channel."""
        with self._mutex:
            self._followed[ticket] = channel
            followers = self._followers.setdefault(channel, set())
            followers.add(ticket)
            known = channel in self._sent
        if not known and self._transport is not None:
            self._transport.flush()

    def unfollow(self, ticket: str) -> None:
        """Unsubscribe from the ticket's channel, if it has one that no other ticket follows."""
        with self._mutex:
            channel = self._followed.pop(ticket, None)
            if channel is None:
                return
            followers = self._followers[channel]
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
        """Return the version of a channel, 0 if its messages would not arrive."""
        return self._versions.get(channel, 0)

    def refusal(self, channel: bytes) -> ReplyError | None:
        """Return the error with which the server has refused the subscription; None if it has not."""
        return self._refusals.get(channel)

    # --- for transports --------------------------------------------------------------------------------------------

    def changes(self, transport: Flushing, connection: Connected) -> Sequence[tuple[bytes, OnReply]]:
        """Return the commands that a transport must send now on its connection, each with what takes its one reply."""
        if transport is not self._transport:
            return ()  # one that was left for another server
        sharded = self._in_shards and version_of(transport.facts()) >= SHARDED_SINCE
        with self._mutex:
            if connection is not self._connection:
                self._begin(connection)
            wanted = self._followers.keys()
            new, old = wanted - self._sent, self._sent - wanted
            self._sent = set(wanted)
            for channel in old:
                self._versions.pop(channel, None)
            if sharded:
                self._leaving += old
            self._count += 1
            number = self._count
            for channel in new:
                self._asked[channel] = number
                self._refusals.pop(channel, None)  # that of an earlier one
        commands = list[tuple[bytes, OnReply]]()
        asking: list[tuple[bytes, OnReply]] = [(ASKING, _ignore)] if self.asking else []
        for channel in old:
            if sharded:
                left = partial(self._left, connection, channel)
                commands += [
                    *asking,
                    (pack(b"SUNSUBSCRIBE", channel), partial(_unless_left, connection)),
                    (HELLO, left),
                ]
            else:
                commands.append((pack(b"UNSUBSCRIBE", channel), _ignore))
        for channel in new:
            subscribe = pack(b"SSUBSCRIBE" if sharded else b"SUBSCRIBE", channel)
            commands += [*asking, (subscribe, partial(self._answered, connection, channel, number))]
        return commands

    def push(self, connection: Connected, push: list[Any]) -> None:
        """Take a push of the server on a connection."""
        kind, channel = push[0], push[1]
        with self._mutex:
            if connection is not self._connection or channel not in self._sent:
                return
            if kind == LEFT and channel not in self._leaving:
                self._sent.discard(channel)
                self._versions.pop(channel, None)
            elif kind in SUBSCRIBED or (kind in MESSAGES and channel in self._versions):
                self._count += 1
                self._versions[channel] = self._count
            else:
                return
        self._on_news(channel)

    def lost(self) -> None:
        """Forget what was subscribed: the connection has ended."""
        with self._mutex:
            self._begin(None)

    def _begin(self, connection: Connected | None) -> None:
        self._connection, self._sent, self._versions, self._refusals = connection, set(), {}, {}
        self._leaving, self._asked = [], {}

    def _left(self, connection: Connected, channel: bytes, reply: Any, failure: object) -> None:
        """Take the reply to HELLO: the SUNSUBSCRIBE before it has its reply."""
        with self._mutex:
            if connection is self._connection and channel in self._leaving:  # not if `lost` came late
                self._leaving.remove(channel)

    def _answered(self, connection: Connected, channel: bytes, number: int, reply: Any, failure: object) -> None:
        """Take the reply to a subscription: a refusal, or the push, which `push` has taken.

        A refusal does not count if the channel was asked for again since: that one may be allowed.
        """
        with self._mutex:
            if connection is not self._connection or self._asked.get(channel) != number:
                return
            del self._asked[channel]
            if not isinstance(reply, ReplyError) or channel not in self._followers:
                return
            self._refusals[channel] = reply
            self._versions.pop(channel, None)  # confirmed before, but we have left it since
        self._on_news(channel)


def _ignore(reply: Any, failure: object) -> None:
    """Take a reply that says nothing new."""


def _unless_left(connection: Connected, reply: Any, failure: object) -> None:
    """Take the error of SUNSUBSCRIBE. Where it has none, this is the reply to the HELLO behind it."""
    if failure is None and not isinstance(reply, ReplyError):
        connection.pending.popleft()[0](reply, None)
