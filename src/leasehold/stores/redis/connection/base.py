"""The transport port of the Redis store, the packing of commands, and which error means what."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from leasehold._runtimes.base import Runtime, Signal
from leasehold.errors import StoreUnavailable


class ReplyError(Exception):
    """An error reply of the server."""

    @property
    def code(self) -> str:
        """Its first word, as ``NOSCRIPT``; looked for inside what older servers wrap around errors in scripts."""
        text = str(self)
        if any(words in text for words in DENIED_IN_SCRIPT):
            return "NOPERM"
        for word in text.replace("-", " ").split():
            if word in NOT_APPLIED:
                return word
        return text.partition(" ")[0]


DENIED_IN_SCRIPT = ("The user executing the script can't", "ACL failure in script")
"""What servers say, without a code, when a script runs a command that the user may not run; up to 7.0, and later."""


class NotPermitted(StoreUnavailable):
    """The server's user lacks a right. Asking again does not help, so whoever waits is told too.

    A script may have been denied after its first write. `unknown` is False all the same: who asked leaves by ticket,
    and a repetition would be denied at the same place.
    """

    lasting = True


class RetryableError(StoreUnavailable):
    """Not carried out: soon it may be, here or by another server. Whoever knows others asks them, within its time."""


class SlotMigrating(RetryableError):
    """The slot is on its way to another node, and its keys are partly here and partly there."""


class HandshakeAborted(RetryableError):
    """The server ended a connection before its handshake was over. Nothing but who we are was sent, so: once more.

    It may have been restarted, or a proxy in between may have dropped what it had left open too long. Whoever refuses
    connections, or says why, is not asked again.
    """


class Redirected(RetryableError):
    """A node of a cluster names another that has the slot, or (``ask``) that has these keys of it already.

    Attributes:
        slot: the hash slot.
        address: host and port.
        ask: it is for this once: the slot is on its way.

    """

    def __init__(self, message: str, slot: int, address: tuple[str, int], *, ask: bool) -> None:
        super().__init__(message)
        self.slot = slot
        self.address = address
        self.ask = ask


PASSING = frozenset({"READONLY", "MASTERDOWN", "LOADING", "CLUSTERDOWN", "TRYAGAIN"})
"""Errors of `NOT_APPLIED` that end by themselves, or where another server is the right one."""

DEMOTED = frozenset({"READONLY", "MASTERDOWN"})
"""Errors of a server that is no primary any more: its connections are of no more use."""

NOT_APPLIED = frozenset(
    {
        "READONLY",
        "NOREPLICAS",
        "OOM",
        "MISCONF",
        "LOADING",
        "MASTERDOWN",
        "CLUSTERDOWN",
        "MOVED",
        "ASK",
        "TRYAGAIN",
        "CROSSSLOT",
        "NOSCRIPT",
        "NOPERM",
        "NOAUTH",
        "WRONGPASS",
        "BUSY",
        "WRONGTYPE",
    }
)
"""Errors after which the command was certainly not carried out. Any other error, and any silence, is unknown."""


class Subscriber(Protocol):
    """Someone who waits for a message: the store's slot for one waiting ticket."""

    news: bool

    def ready(self, runtime: Runtime) -> Signal:
        """Return the signal to wait for."""
        ...

    def set(self) -> None:
        """Wake who waits, from any thread; nothing happens if nobody waits yet, since ``news`` is looked at first."""
        ...


class Transport(Protocol):
    """One server, seen from one client."""

    async def call(self, command: bytes, *, within: float) -> Any:
        """Send one packed command and return its reply, which may be a `ReplyError`.

        Raises:
            StoreUnavailable: ``unknown`` if the command may have reached the server.
        """
        ...

    async def call_all(self, commands: Sequence[bytes], *, within: float) -> list[Any]:
        """Send several commands in one write; return their replies in order."""
        ...

    async def listen(self, within: float) -> int:
        """Make sure that the client's channel is subscribed; return the number of the subscription.

        Another number than before means that messages may have been missed in between.
        """
        ...

    def generation(self) -> int:
        """Return the number of the subscription that stands now, 0 if none does."""
        ...

    def receive(self, subscriber: Subscriber, timeout: float) -> Coroutine[Any, Any, object]:
        """Wait until ``subscriber.news``, at most ``timeout`` seconds, reading messages for all if nobody else does."""
        ...

    def notify(self, subscriber: Subscriber) -> None:
        """Wake one who waits in `hear`, from any thread; its ``news`` is set. It may not have begun to wait."""
        ...

    def has_unread(self) -> bool:
        """Say, without waiting, whether something came on the subscription that nobody has read."""
        ...

    def hang_up(self) -> None:
        """End all connections, as if the server had: who listens is told, and the next call connects anew."""
        ...

    def set_channel(self, channel: bytes) -> None:
        """Subscribe to another channel from the next `listen` on that subscribes."""
        ...

    def facts(self) -> dict[str, str]:
        """Return what the last handshake told: ``version``, ``role``, ``server``."""
        ...

    async def close(self) -> None: ...

    def after_fork(self, channel: bytes) -> None:
        """Start anew in a forked child, on a channel of its own."""
        ...


class MakeTransport(Protocol):
    """Makes the transport of one server."""

    def __call__(
        self, runtime: Runtime, settings: Any, channel: bytes, on_message: OnMessage, on_silence: OnSilence, /
    ) -> Transport: ...


OnMessage = Callable[[bytes], None]
"""Called with each message on the client's channel."""

OnSilence = Callable[[], None]
"""Called when the subscription broke: whoever waits must ask again."""


def pack(*words: bytes) -> bytes:
    """Return a command in the protocol's form (an array of bulk strings)."""
    return b"*%d\r\n%b" % (len(words), b"".join(map(bulk, words)))


def bulk(word: bytes) -> bytes:
    """Return one word of a command in the protocol's form."""
    return b"$%d\r\n%b\r\n" % (len(word), word)


HELLO = pack(b"HELLO", b"3")
"""Asks the server who it is: its version and role. redis-py has said the same, with the password."""


SHARD_MARK = b"}:shard:"
"""What the name of a channel has in it that belongs to one shard of a cluster."""

MESSAGES = (b"message", b"smessage")

SHARDED_SINCE = (7, 0)
"""Version of the server from which on a shard has channels of its own."""


def subscriptions(channel: bytes, version: tuple[int, ...]) -> list[bytes]:
    """Return the commands that subscribe.

    The channel of a shard is heard as a common one too: by that a server to which the name of a waiter has moved can
    still tell it, over the cluster's own connections, to ask again.
    """
    sharded = SHARD_MARK in channel and version >= SHARDED_SINCE
    return [pack(b"SUBSCRIBE", channel), *([pack(b"SSUBSCRIBE", channel)] if sharded else [])]


def version_of(facts: dict[str, str]) -> tuple[int, ...]:
    """Return major and minor number of what `Transport.facts` names."""
    return tuple(int(part) for part in facts.get("version", "0").split(".")[:2] if part.isdecimal())


def no_answer(where: str, why: object, *, unknown: bool) -> StoreUnavailable:
    """Make the error for a server that did not answer."""
    reason = str(why) or type(why).__name__
    text = f"Redis at {where} did not answer: {reason}; {SILENCE}"
    return StoreUnavailable(text, unknown=True) if unknown else RetryableError(text)


def refused(where: str, error: ReplyError, host: str = "") -> StoreUnavailable:
    """Make the error for a server that answered with an error; ``host`` is its own, where a redirection names none."""
    code = error.code
    text = f"Redis at {where} refused: {error}; {REMEDIES.get(code, UNLISTED)}"
    if code == "NOPERM":
        command = re.search(r"'([\w|]+)' command", str(error))
        return NotPermitted(text + (f": here +{command[1]} is missing" if command else ""))
    if code in REDIRECTS and (found := _REDIRECT.search(str(error))) is not None:
        named = found[3].strip("[]")
        address = (host if named in ("", "?") else named), int(found[4])
        return Redirected(text, int(found[2]), address, ask=code == "ASK")
    if code in PASSING:
        return SlotMigrating(text) if code == "TRYAGAIN" else RetryableError(text)
    return StoreUnavailable(text, unknown=code not in NOT_APPLIED)


REDIRECTS = ("MOVED", "ASK")

_REDIRECT = re.compile(r"(MOVED|ASK) (\d+) (\S*):(\d+)")


RIGHTS_PAGE = "docs/backends/redis.md"

BY_CLUSTER = "write the URL as redis+cluster://HOST:PORT"
BY_SENTINEL = "write the URL as redis+sentinel://HOST:PORT/NAME, NAME being what the sentinels call the primary"

REMEDIES = {
    "READONLY": "it is a replica; connect to the primary, or let redis+sentinel:// or redis+cluster:// find it",
    "NOREPLICAS": "fewer replicas follow it than min-replicas-to-write asks; look at them",
    "OOM": "its maxmemory is reached; release still works; give it more memory",
    "MISCONF": "it cannot write its snapshot; look at its disk",
    "LOADING": "it is starting; try again",
    "MASTERDOWN": "it is a replica without its primary; connect to the primary",
    "CLUSTERDOWN": "the cluster has no server for this slot now; look at CLUSTER INFO and CLUSTER NODES",
    "MOVED": f"it is a node of a cluster; {BY_CLUSTER}",
    "ASK": f"it is a node of a cluster; {BY_CLUSTER}",
    "TRYAGAIN": f"the slot is on its way to another node of the cluster; {BY_CLUSTER}",
    "CROSSSLOT": f"it is a node of a cluster, or there is a proxy in between; {BY_CLUSTER}",
    "NOSCRIPT": "it forgets scripts as soon as it has them; look for a proxy in between",
    "NOPERM": f"grant its user the rights listed in {RIGHTS_PAGE}",
    "NOAUTH": "put the password into the URL: redis://:password@host",
    "WRONGPASS": "the user name or password in the URL is wrong",
    "BUSY": "another script keeps it busy; find it with SLOWLOG, end it with SCRIPT KILL",
    "WRONGTYPE": "something else uses a key under the prefix 'leasehold:'; look for it and give it another name",
}
"""What to do about each error of `NOT_APPLIED`."""

SILENCE = "look whether it is up, reachable and not overloaded, and speaks TLS on this port if the URL says so"

UNLISTED = "its log may say more; `leasehold doctor` looks at its settings"
