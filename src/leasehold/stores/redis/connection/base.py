"""The transport port of the Redis store, the packing of commands, and which error means what."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol

from leasehold._runtimes.base import Runtime, Signal
from leasehold.errors import StoreRefused, StoreUnavailable
from leasehold.stores._common.answers import with_remedy


class ReplyError(Exception):
    """An error reply of the server."""

    @property
    def code(self) -> str:
        """The first word of the error, such as ``NOSCRIPT``, also where older servers put text around script errors."""
        text = str(self)
        if any(words in text for words in DENIED_IN_SCRIPT):
            return "NOPERM"
        for word in text.replace("-", " ").split():
            if word in NOT_APPLIED:
                return word
        return text.partition(" ")[0]


DENIED_IN_SCRIPT = ("The user executing the script can't", "ACL failure in script")
"""Texts, without a code, of the error when a script runs a command without the right: up to 7.0, and later."""


class NotPermitted(StoreRefused):
    """The server's user lacks a right. A retry does not help, so it is raised in waiters, too.

    A script may have been denied after its first write. `unknown` is False all the same: the caller releases by
    ticket, and a repeated script would be denied at the same command.
    """


class RetryableError(StoreUnavailable):
    """The request was not carried out; a retry, here or at another server, may succeed.

    A transport to several servers retries within the caller's time.
    """


class SlotMigrating(RetryableError):
    """The slot is migrating to another node, and its keys are partly here and partly there (TRYAGAIN)."""


class HandshakeAborted(RetryableError):
    """The server closed a connection during the handshake. No command was sent, so one retry is safe.

    The server may have been restarted, or a proxy may have dropped an idle connection. A server that refuses
    connections, or answers with an error, is not retried.
    """


class Redirected(RetryableError):
    """A cluster node names the node that has the slot (MOVED), or that has these keys of it already (ASK)."""

    def __init__(self, message: str, *, slot: int = 0, address: tuple[str, int] = ("", 0), ask: bool = False) -> None:
        super().__init__(message)  # `copy` and `pickle` pass the message alone
        self.slot = slot
        self.address = address  # host and port
        self.ask = ask  # for this command alone, while the slot is migrating


PASSING = frozenset({"READONLY", "MASTERDOWN", "LOADING", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS"})
"""Errors of `NOT_APPLIED` that pass by themselves, or that another server does not have.

A replica that was just promoted has no replicas yet (NOREPLICAS), nor has a primary that was cut off.
"""

DEMOTED = frozenset({"READONLY", "MASTERDOWN"})
"""Errors of a server that is no longer a primary: its connections are useless."""


class Subscriber(Protocol):
    """A waiter for messages: the slot of one waiting ticket."""

    news: bool
    lease: float
    """Seconds: a subscription that is dead is to be found within a third of it."""

    def ready(self, runtime: Runtime) -> Signal:
        """Return the signal to wait for."""
        ...

    def set(self) -> None:
        """Wake the waiter, from any thread. Before it waits this does nothing, since it checks ``news`` first."""
        ...


class Transport(Protocol):
    """The connections of one client to one server."""

    def call(self, command: bytes, *, within: float) -> Awaitable[Any]:
        """Send one packed command and return its reply, which may be a `ReplyError`.

        Raises:
            StoreUnavailable: ``unknown`` if the command may have reached the server.
        """
        ...

    async def call_all(self, commands: Sequence[bytes], *, within: float) -> list[Any]:
        """Send several commands in one write; return their replies in order."""
        ...

    async def listen(self, within: float) -> int:
        """Subscribe to the client's channel if it is not; return the number of the subscription.

        A new number means that messages may have been missed since the last.
        """
        ...

    def generation(self) -> int:
        """Return the number of the current subscription, 0 if there is none."""
        ...

    def receive(self, subscriber: Subscriber, timeout: float) -> Coroutine[Any, Any, object]:
        """Wait until ``subscriber.news``, at most ``timeout`` seconds; read for all if no other thread does."""
        ...

    def notify(self, subscriber: Subscriber) -> None:
        """Wake a subscriber in `receive`, from any thread; its ``news`` is set. It may not have begun to wait."""
        ...

    def has_unread(self) -> bool:
        """Return, without waiting, whether the subscription has data that no thread has read."""
        ...

    def hang_up(self) -> None:
        """Close all connections, as if the server had: waiters retry, and the next call connects anew."""
        ...

    def set_channel(self, channel: bytes) -> None:
        """Use another channel from the next `listen` on that subscribes."""
        ...

    def facts(self) -> dict[str, str]:
        """Return the server's reply to the last handshake: ``version``, ``role``, ``server``."""
        ...

    async def close(self) -> None: ...

    def after_fork(self, channel: bytes) -> None:
        """Drop all connections in a forked child, which gets its own channel."""
        ...


OnMessage = Callable[[bytes], None]
"""Called with each message on the client's channel."""

OnSilence = Callable[[], None]
"""Called when the subscription ended: all waiters must retry."""

MakeTransport = Callable[[Runtime, Any, bytes, OnMessage, OnSilence], Transport]
"""Makes the transport of one server, from its settings and the client's channel."""

UNSUBSCRIBED: tuple[bytes, OnMessage, OnSilence] = (b"", lambda message: None, lambda: None)
"""The last arguments of `MakeTransport` for a transport that does not subscribe."""


def pack(*args: bytes) -> bytes:
    """Return a packed command: an array of bulk strings."""
    return b"*%d\r\n%b" % (len(args), b"".join(map(bulk, args)))


def bulk(arg: bytes) -> bytes:
    """Return one argument of a command as a bulk string."""
    return b"$%d\r\n%b\r\n" % (len(arg), arg)


HELLO = pack(b"HELLO", b"3")
"""Asks for the server's version and role. redis-py has sent it before, with the password."""

ASKING = pack(b"ASKING")
"""Allows the next command on the connection keys of a slot that the node is importing."""


SHARD_MARK = b"}:shard:"
"""Part of the name of a channel that belongs to one shard of a cluster."""

SHARDED_SINCE = (7, 0)
"""The first version of the server with sharded channels."""


def subscriptions(channel: bytes, version: tuple[int, ...]) -> list[bytes]:
    """Return the commands that subscribe.

    A shard's channel is subscribed to as a common one, too. So a server to which a waiter's name has moved can still
    notify the waiter, over the cluster's own connections, to retry.
    """
    sharded = SHARD_MARK in channel and version >= SHARDED_SINCE
    return [pack(b"SUBSCRIBE", channel), *([pack(b"SSUBSCRIBE", channel)] if sharded else [])]


def version_of(facts: dict[str, str]) -> tuple[int, ...]:
    """Return the major and minor version in `Transport.facts`."""
    return tuple(int(part) for part in facts.get("version", "0").split(".")[:2] if part.isdecimal())


def info_fields(reply: bytes) -> dict[str, str]:
    """Return the fields in a reply to INFO."""
    lines = (line.partition(":") for line in reply.decode("utf-8", "replace").splitlines())
    return {key: value for key, colon, value in lines if colon}


def no_answer(where: str, why: object, *, unknown: bool) -> StoreUnavailable:
    """Return the error for a server that did not reply."""
    reason = str(why) or type(why).__name__
    text = with_remedy(f"Redis at {where} did not answer: {reason}", SILENCE)
    return StoreUnavailable(text, unknown=True) if unknown else RetryableError(text)


def refused(where: str, error: ReplyError, host: str = "") -> StoreUnavailable:
    """Return the error for an error reply; ``host``: that of the server, where a redirection names none."""
    code = error.code
    text = with_remedy(f"Redis at {where} refused: {error}", REMEDIES.get(code, UNLISTED))
    if code == "NOPERM":
        command = re.search(r"'([\w|]+)' command", str(error))
        return NotPermitted(text + (f": here +{command[1]} is missing" if command else ""))
    if code in REDIRECTS and (found := _REDIRECT.search(str(error))) is not None:
        named = found[3].strip("[]")
        address = (host if named in ("", "?") else named), int(found[4])
        return Redirected(text, slot=int(found[2]), address=address, ask=code == "ASK")
    if code in PASSING:
        return SlotMigrating(text) if code == "TRYAGAIN" else RetryableError(text)
    return StoreUnavailable(text, unknown=code not in NOT_APPLIED)


REDIRECTS = ("MOVED", "ASK")

_REDIRECT = re.compile(r"(MOVED|ASK) (\d+) (\S*):(\d+)")


RIGHTS_PAGE = "docs/backends/redis.md"

BY_CLUSTER = "write the URL as redis+cluster://HOST:PORT"
BY_SENTINEL = "write the URL as redis+sentinel://HOST:PORT/NAME, NAME being the sentinels' name of the primary"

REMEDIES = {
    "READONLY": "it is a replica; connect to the primary, or let redis+sentinel:// or redis+cluster:// find it",
    "NOREPLICAS": "fewer replicas follow it than min-replicas-to-write; check the replicas",
    "OOM": "its maxmemory is reached; releases still work; give it more memory",
    "MISCONF": "it cannot write its snapshot; check its disk",
    "LOADING": "it is starting; retry",
    "MASTERDOWN": "it is a replica without its primary; connect to the primary",
    "CLUSTERDOWN": "the cluster has no server for this slot now; check CLUSTER INFO and CLUSTER NODES",
    "MOVED": f"another node of the cluster has the slot; retry, and {BY_CLUSTER} if it is another",
    "ASK": f"the slot is migrating to another node of the cluster; retry, and {BY_CLUSTER} if it is another",
    "TRYAGAIN": f"the slot is migrating to another node of the cluster; retry, and {BY_CLUSTER} if it is another",
    "CROSSSLOT": f"it is a node of a cluster, or there is a proxy in between; {BY_CLUSTER}",
    "NOSCRIPT": "it forgets scripts at once; check for a proxy in between",
    "NOPERM": f"grant its user the rights listed in {RIGHTS_PAGE}",
    "NOAUTH": "put the password into the URL: redis://:password@host",
    "WRONGPASS": "the user name or password in the URL is wrong",
    "BUSY": "another script keeps it busy; find it with SLOWLOG, end it with SCRIPT KILL",
    "WRONGKEY": "choose another name, or another prefix= in the URL",
    "WRONGTYPE": "another program uses a key under the prefix 'leasehold:'; find it and rename its key",
}
"""What to do about each error of `NOT_APPLIED`."""

NOT_APPLIED = frozenset(REMEDIES)
"""Errors after which the command was certainly not carried out. Any other error, and no reply, is unknown."""

SILENCE = "check that it runs, is reachable and not overloaded, and uses TLS on this port if the URL does"

UNLISTED = "see its log; `leasehold doctor` checks its settings"
