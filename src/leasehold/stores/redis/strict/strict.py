"""Strict mode: no grant by a server that may have forgotten one, and none that too few replicas have.

Theory of operation
-------------------
The state, the steps, what they promise and why is in ``docs/strict.md``; the quarantine itself is in ``strict.lua``.

Only claims are different from those of the default mode. A release or a renewal of a place may hand the name to a
waiter as ever, in quarantine too: that merely puts the waiter's ticket down as the next holder. It holds when a claim
of its own has said so, and that claim is refused in quarantine and waits for the replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from leasehold._url import StoreURL, Veiled
from leasehold.errors import StoreUnavailable
from leasehold.stores.redis.connection.base import Elsewhere, ReplyError, Transport, refused
from leasehold.stores.redis.connection.settings import Settings
from leasehold.stores.redis.scripts import STRICTLY, Script
from leasehold.stores.redis.scripts.commands import Command
from leasehold.stores.redis.strict.quorum import Strict

QUARANTINED = 3
"""First word of the reply to a claim while nothing is granted."""

NOT_LOCAL = "non local key"
"""Words of a cluster's node that does not have the slot of the marker any more."""

OPTIONS = ("strict", "longest_lease", "replicas", "fsync")

TRUTH = {"true": True, "false": False}


class Unconfirmed(StoreUnavailable):
    """Granted, but too few replicas acknowledged it in time. Whoever gets this gives the grant back."""


def from_url(url: StoreURL) -> tuple[Strict | None, StoreURL]:
    """Read the options of strict mode; return them, None if it is off, and the URL without them.

    Raises:
        ValueError: one has a value that it cannot have, or is there without ``strict=true``.

    """
    given = {key: url.options[key] for key in OPTIONS if key in url.options}
    rest = replace(url, options=Veiled({key: value for key, value in url.options.items() if key not in OPTIONS}))
    on = _read(url, "strict", given.pop("strict", "false"), TRUTH.__getitem__, "true or false")
    if not on:
        if given:
            raise ValueError(f"option {next(iter(given))!r} in the {url.scheme} URL needs strict=true beside it")
        return None, rest
    usual = Strict()
    count = given.get("replicas")
    return Strict(
        _read(url, "longest_lease", given.get("longest_lease", str(usual.longest)), float, "a number of seconds"),
        None if count is None else _read(url, "replicas", count, int, "a whole number"),
        _read(url, "fsync", given.get("fsync", "false"), TRUTH.__getitem__, "true or false"),
    ), rest


def quarantine_reason(where: str) -> str:
    """Say why a server in quarantine grants nothing."""
    return f"Redis at {where} may have forgotten grants (restarted, emptied, promoted), so in strict mode it makes none"


def _read(url: StoreURL, key: str, text: str, read: Callable[[str], Any], form: str) -> Any:
    try:
        return read(text)
    except (ValueError, KeyError):
        raise ValueError(f"option {key!r} in the {url.scheme} URL is {form}, not {text!r}") from None


class Claims:
    """Claims of one server in strict mode.

    Args:
        strict: the options.
        settings: of the server.
        marker: returns the marker's key; ``True`` asks for another than before, since the server lacks its slot.

    """

    def __init__(self, strict: Strict, settings: Settings, marker: Callable[[bool], bytes]) -> None:
        self._strict = strict
        self._where, self._host = settings.where, str(settings.options.get("host", ""))
        self._find = marker
        self._marker = b""
        self._needed = strict.replicas or 0

    @property
    def marker(self) -> bytes:
        """The key of the marker."""
        self._marker = self._marker or self._find(False)
        return self._marker

    async def ask(self, transport: Transport, command: Command, *, within: float) -> Any:
        """Claim; return the reply, which may be a `ReplyError`.

        Raises:
            Unconfirmed: it was granted, and is to be given back.
            StoreUnavailable: as `Transport.call`.

        """
        plain, those, args = command
        script = STRICTLY[plain]
        asked = those, (*args, self.marker, b"%d" % round(self._strict.longest * 1000))
        while True:
            needed = self._needed
            reply, acknowledged = await self._send(transport, script, asked, needed, within)
            if isinstance(reply, ReplyError):
                if NOT_LOCAL in str(reply):
                    self._marker = self._find(True)
                    raise Elsewhere(f"Redis at {self._where}: slots are on their way; the claim was not carried out")
                return reply
            if reply[0] != 1:
                return reply
            self._needed = self._strict.needed(int(reply[3]))
            if self._needed <= needed:
                break
        # Asked again where there are more replicas than known: the same ticket is granted again, in a new write.
        if (needed or self._strict.fsync) and not self._strict.acknowledged(acknowledged, self._needed):
            raise self._unconfirmed(acknowledged)
        return reply

    async def _send(
        self,
        transport: Transport,
        script: Script,
        asked: tuple[Sequence[bytes], Sequence[bytes]],
        needed: int,
        within: float,
    ) -> tuple[Any, Any]:
        """Send the claim, and behind it, on the same connection, what waits for the replicas."""
        packed = script.by_digest(*asked)
        wait = [self._strict.wait(needed, within)] if needed or self._strict.fsync else []
        replies = await transport.call_all([packed, *wait], within=within)
        if isinstance(replies[0], ReplyError) and replies[0].code == "NOSCRIPT":
            replies = await transport.call_all([script.by_text(*asked), *wait], within=within)
        return replies[0], replies[1] if wait else None

    def _unconfirmed(self, reply: Any) -> StoreUnavailable:
        if isinstance(reply, ReplyError):
            if "nknown command" in str(reply):
                reason = "the server does not know WAITAOF; leave out fsync=true, or use Redis 7.2 or later"
                return Unconfirmed(f"Redis at {self._where}: {reason}")
            if "appendonly" in str(reply):
                remedy = "CONFIG SET appendonly yes, or leave out fsync=true"
                return Unconfirmed(f"Redis at {self._where}: {reply}; {remedy}")
            return Unconfirmed(str(refused(self._where, reply, self._host)))
        count = f"{reply[1]} replicas, {reply[0]} of 1 disk here" if self._strict.fsync else f"{reply}"
        return Unconfirmed(
            f"Redis at {self._where} granted the lock, but of {self._needed} replicas that must have it in time "
            f"only {count} did, so it was given back; look at the replicas (INFO replication)"
        )
