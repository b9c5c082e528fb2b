"""Tickets that are on a Redis after their release: nothing renews or releases them, and they block others.

No history of clients shows one for certain: to them it looks like a dead holder. The server sees it: a late claim adds
a ticket after its release, and no other release follows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from leasehold.stores.redis.connection.base import ReplyError
from leasehold.stores.redis.scripts import CLAIM, RELEASE, SHARED_CLAIM, SHARED_RELEASE

CLAIMS, LEAVES = {CLAIM.digest, SHARED_CLAIM.digest}, {RELEASE.digest, SHARED_RELEASE.digest}
BREAKS, HOLDS = b"1", 1

Ask = Callable[[Sequence[bytes]], Any]


class Orphans:
    """The orphans of one server. ``ask`` runs a command on it."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._left = set[tuple[bytes, bytes]]()
        self.found = dict[tuple[bytes, bytes], str]()

    def saw(self, words: Sequence[bytes], reply: Any) -> None:
        """Record a command that was carried out, and its reply."""
        if words[0] not in (b"EVALSHA", b"EVAL") or isinstance(reply, ReplyError):
            return
        digest = words[1].lower() if words[0] == b"EVALSHA" else _digest(words[1])
        keys, args = words[3 : 3 + int(words[2])], words[3 + int(words[2]) :]
        if digest in LEAVES and args[-1] != BREAKS:
            self._left.add((keys[0], args[0]))
            self.found.pop((keys[0], args[0]), None)
        elif digest in CLAIMS and (keys[0], args[0]) in self._left:
            holds = reply[0] == HOLDS
            if holds or self._ask((b"ZSCORE", keys[1], args[0])) is not None:
                self.found[keys[0], args[0]] = "holds" if holds else "waits"


@lru_cache(100)
def _digest(text: bytes) -> bytes:
    return hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()
