"""Strict mode: a server that may have forgotten a grant makes none, and a grant counts once enough replicas have it.

Theory of operation
-------------------
``docs/strict.md`` describes the state, the steps, their promises and the reasons. The quarantine is in ``strict.lua``.

Only the acquire differs from the default mode. A release, or a renewal of queue entries, hands the name to a waiter as
usual, in quarantine too. That merely writes the waiter's ticket as the next holder. The waiter holds once its own claim
has confirmed that. In quarantine that claim is refused, and outside it waits for the replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from leasehold._url import StoreURL, Veiled
from leasehold.errors import StoreUnavailable
from leasehold.stores._common.answers import with_remedy
from leasehold.stores.redis.connection.base import ReplyError, RetryableError, Transport, refused
from leasehold.stores.redis.connection.settings import Settings
from leasehold.stores.redis.scripts import STRICTLY
from leasehold.stores.redis.scripts.commands import Command
from leasehold.stores.redis.strict.quorum import LONGEST, Strict

QUARANTINED = 3
"""The first element of the reply to a claim in quarantine."""

NOT_LOCAL = "non local key"
"""Text in the error of a cluster node that no longer has the marker's slot."""

TRUTH = {"true": True, "false": False}.__getitem__, "true or false"

OPTIONS: Mapping[str, tuple[Callable[[str], Any], str]] = {
    "strict": TRUTH,
    "longest_lease": (float, "a number of seconds"),
    "replicas": (int, "a whole number"),
    "fsync": TRUTH,
}
"""The options in a URL: what reads each, and how it is written."""


class Unconfirmed(StoreUnavailable):
    """Granted, but too few replicas acknowledged it in time. The caller must release the grant."""


def from_url(url: StoreURL) -> tuple[Strict | None, StoreURL]:
    """Return the options of strict mode, None if it is off, and the URL without them.

    Raises:
        ValueError: an option has an invalid value, or is given without ``strict=true``.
    """
    given: dict[str, Any] = {}
    for key, (read, form) in OPTIONS.items():
        if (text := url.options.get(key)) is not None:
            try:
                given[key] = read(text)
            except (ValueError, KeyError):
                raise ValueError(f"option {key!r} in the {url.scheme} URL is {form}, not {text!r}") from None
    rest = replace(url, options=Veiled({key: value for key, value in url.options.items() if key not in OPTIONS}))
    if given.pop("strict", False):
        return Strict(given.pop("longest_lease", LONGEST), **given), rest
    if given:
        raise ValueError(f"option {next(iter(given))!r} in the {url.scheme} URL needs strict=true as well")
    return None, rest


def quarantine_reason(where: str) -> str:
    """Return the reason, for people, why a server in quarantine grants nothing."""
    return f"Redis at {where} may have forgotten grants (restarted, emptied, promoted), so strict mode makes none"


class Claims:
    """Acquires at one server in strict mode.

    Args:
        strict: the options.
        settings: of the server.
        marker: returns the marker's key; with ``True`` another than before, since the server lacks its slot.
    """

    def __init__(self, strict: Strict, settings: Settings, marker: Callable[[bool], bytes]) -> None:
        self._strict = strict
        self._where, self._host = settings.where, str(settings.options.get("host", ""))
        self._find = marker
        self._marker = b""
        self._needed = strict.replicas or 0

    @property
    def marker(self) -> bytes:
        self._marker = self._marker or self._find(False)
        return self._marker

    async def ask(self, transport: Transport, command: Command, *, within: float) -> Any:
        """Acquire; return the reply, which may be a `ReplyError`.

        Raises:
            Unconfirmed: it was granted, and must be released.
            StoreUnavailable: as `Transport.call`.
        """
        plain, script_keys, args = command
        longest = b"%d" % round(self._strict.longest * 1000)
        strictly = STRICTLY[plain], script_keys, (*args, self.marker, longest)
        needed = self._needed  # read once: other threads write it, too
        granted = False  # by an earlier sending: what then fails must not count as not carried out
        while True:
            sent = needed
            try:
                reply, acknowledged = await self._send(transport, strictly, sent, within)
            except StoreUnavailable as error:
                if granted:
                    raise StoreUnavailable(error.message, unknown=True) from error
                raise
            if isinstance(reply, ReplyError):
                if granted:
                    raise Unconfirmed(str(refused(self._where, reply, self._host)))
                if NOT_LOCAL in str(reply):
                    self._marker = self._find(True)
                    raise RetryableError(
                        f"Redis at {self._where}: its slots are migrating; the request was not carried out"
                    )
                return reply
            if reply[0] != 1:
                return reply
            granted = True
            needed = self._needed = self._strict.needed(int(reply[3]))
            if needed <= sent:
                break
        # Repeated if there are more replicas than known before: the same ticket is granted again, in a new write.
        if (sent or self._strict.fsync) and not self._strict.acknowledged(acknowledged, needed):
            raise self._unconfirmed(acknowledged, needed)
        return reply

    async def _send(self, transport: Transport, command: Command, needed: int, within: float) -> tuple[Any, Any]:
        """Send the claim, and after it, on the same connection, the command that waits for the replicas."""
        script, *keys_and_args = command
        packed = script.by_digest(*keys_and_args)
        wait = [self._strict.wait(needed, within)] if needed or self._strict.fsync else []
        replies = await transport.call_all([packed, *wait], within=within)
        if isinstance(replies[0], ReplyError) and replies[0].code == "NOSCRIPT":
            replies = await transport.call_all([script.by_text(*keys_and_args), *wait], within=within)
        return replies[0], replies[1] if wait else None

    def _unconfirmed(self, reply: Any, needed: int) -> StoreUnavailable:
        if isinstance(reply, ReplyError):
            if "nknown command" in str(reply):
                reason = "the server does not know WAITAOF; leave out fsync=true, or use Redis 7.2 or later"
                return Unconfirmed(f"Redis at {self._where}: {reason}")
            if "appendonly" in str(reply):
                remedy = "CONFIG SET appendonly yes, or leave out fsync=true"
                return Unconfirmed(with_remedy(f"Redis at {self._where}: {reply}", remedy))
            return Unconfirmed(str(refused(self._where, reply, self._host)))
        count = f"{reply[1]} replicas, {reply[0]} of 1 disk here" if self._strict.fsync else f"{reply}"
        return Unconfirmed(
            f"Redis at {self._where} granted the lock, but of {needed} replicas that must have it in time "
            f"only {count} did, so it was given back; look at the replicas (INFO replication)"
        )
