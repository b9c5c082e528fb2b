"""Several names in one script: the scripts for one name, as functions of its keys and arguments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from leasehold._model import ReleaseReason, Ticket
from leasehold.stores.redis import shared
from leasehold.stores.redis.scripts import CLAIM_MANY, commands
from leasehold.stores.redis.scripts.commands import Command


def try_acquire(namespace: str, claims: Sequence[tuple[str, Ticket]], *, keep: bool) -> Command:
    """Return the command that claims names of one slot in order."""
    keys: list[bytes] = []
    words: list[bytes] = [b"%d" % keep]
    for name, ticket in claims:
        _, those, mine = commands.try_acquire(namespace, name, ticket, join=False, channel=b"")
        _, _, back = commands.release(namespace, name, ticket, ReleaseReason.RELEASE)
        kind = b"shared" if shared.is_shared(ticket) else b""
        keys += those
        words += [kind, *_counts(those, mine, back), *mine, *back]
    return CLAIM_MANY, keys, words


def _counts(*parts: Sequence[bytes]) -> Iterable[bytes]:
    return (b"%d" % len(part) for part in parts)
