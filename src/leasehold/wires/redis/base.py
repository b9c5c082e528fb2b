"""The wire port of the Redis store, the packing of commands, and which error means what."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from leasehold.errors import StoreUnavailable
from leasehold.runtimes.base import Runtime, Signal


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


class Ear(Protocol):
    """Someone who waits for a message: the store's slot for one waiting ticket."""

    news: bool

    def ready(self, runtime: Runtime) -> Signal:
        """Return the signal to wait for."""
        ...

    def ring(self) -> None:
        """Wake who waits, from any thread; nothing happens if nobody waits yet, since ``news`` is looked at first."""
        ...


class Wire(Protocol):
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

    def epoch(self) -> int:
        """Return the number of the subscription that stands now, 0 if none does."""
        ...

    async def hear(self, ear: Ear, timeout: float) -> None:
        """Wait until ``ear.news``, at most ``timeout`` seconds, reading messages for all if nobody else does."""
        ...

    def nudge(self, ear: Ear) -> None:
        """Wake one who waits in `hear`, from any thread; its ``news`` is set. It may not have begun to wait."""
        ...

    def facts(self) -> dict[str, str]:
        """Return what the last handshake told: ``version``, ``role``, ``server``."""
        ...

    async def close(self) -> None: ...

    def after_fork(self, channel: bytes) -> None:
        """Start anew in a forked child, on a channel of its own."""
        ...


OnMessage = Callable[[bytes], None]
"""Called with each message on the client's channel."""

OnSilence = Callable[[], None]
"""Called when the subscription broke: whoever waits must ask again."""


def pack(*words: bytes) -> bytes:
    """Return a command in the protocol's form (an array of bulk strings)."""
    parts = [b"*%d\r\n" % len(words)]
    parts += [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
    return b"".join(parts)


HELLO = pack(b"HELLO", b"3")
"""Asks the server who it is: its version and role. redis-py has said the same, with the password."""


def no_answer(where: str, why: object, *, unknown: bool) -> StoreUnavailable:
    """Make the error for a server that did not answer."""
    reason = str(why) or type(why).__name__
    return StoreUnavailable(f"Redis at {where} did not answer: {reason}; {SILENCE}", unknown=unknown)


def refused(where: str, error: ReplyError) -> StoreUnavailable:
    """Make the error for a server that answered with an error."""
    code = error.code
    text = f"Redis at {where} refused: {error}; {REMEDIES.get(code, UNLISTED)}"
    if code == "NOPERM":
        command = re.search(r"'([\w|]+)' command", str(error))
        return NotPermitted(text + (f": here +{command[1]} is missing" if command else ""))
    return StoreUnavailable(text, unknown=code not in NOT_APPLIED)


RIGHTS_PAGE = "docs/backends/redis.md"

REMEDIES = {
    "READONLY": "it is a replica; connect to the primary",
    "NOREPLICAS": "fewer replicas follow it than min-replicas-to-write asks; look at them",
    "OOM": "its maxmemory is reached; release still works; give it more memory",
    "MISCONF": "it cannot write its snapshot; look at its disk",
    "LOADING": "it is starting; try again",
    "MASTERDOWN": "it is a replica without its primary; connect to the primary",
    "CLUSTERDOWN": "it is a node of a cluster, which this version cannot use; connect to a single server",
    "MOVED": "it is a node of a cluster, which this version cannot use; connect to a single server",
    "ASK": "it is a node of a cluster, which this version cannot use; connect to a single server",
    "TRYAGAIN": "it is a node of a cluster, which this version cannot use; connect to a single server",
    "CROSSSLOT": "it is a node of a cluster, which this version cannot use; connect to a single server",
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
