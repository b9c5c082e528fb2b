"""Tickets that are on a Redis though their client has left with them: nobody looks after them, and they block others.

No history of clients shows one for certain: to them it looks like a holder that has died. The server sees it: a ticket
enters, by a claim that came late, after its leave, and no other leave follows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from leasehold.stores.redis.connection.base import ReplyError
from leasehold.stores.redis.scripts import CLAIM, LEAVE, SHARED_CLAIM, SHARED_LEAVE

CLAIMS, LEAVES = {CLAIM.digest, SHARED_CLAIM.digest}, {LEAVE.digest, SHARED_LEAVE.digest}
BREAKS, HOLDS = b"1", 1

Ask = Callable[[Sequence[bytes]], Any]


class Orphans:
    """What a server knows of them. ``ask`` carries out a command on it."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._left = set[tuple[bytes, bytes]]()
        self.found = dict[tuple[bytes, bytes], str]()

    def saw(self, words: Sequence[bytes], reply: Any) -> None:
        """Take note of a command that was carried out, and of what it answered."""
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
