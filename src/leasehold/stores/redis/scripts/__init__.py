"""The Lua scripts: files of constant text.

``common.lua`` is put before those on the queue of one name, and ``shared_common.lua`` after it before those on a name
with many holders.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from leasehold.wires.redis.base import pack


@dataclass(frozen=True, slots=True)
class Script:
    """One script: its text, and the digest by which the server knows it once it has seen the text."""

    name: str
    text: bytes
    digest: bytes

    def by_digest(self, keys: Sequence[bytes], args: Sequence[bytes]) -> bytes:
        """Pack a call of what the server has seen before."""
        return pack(b"EVALSHA", self.digest, b"%d" % len(keys), *keys, *args)

    def by_text(self, keys: Sequence[bytes], args: Sequence[bytes]) -> bytes:
        """Pack a call that brings the text, after the server answered NOSCRIPT."""
        return pack(b"EVAL", self.text, b"%d" % len(keys), *keys, *args)


def _load(name: str, *, before: Sequence[str] = ("common",)) -> Script:
    folder = files(__name__)
    parts = [f"{part}.lua" for part in (*before, name)]
    text = "\n".join(folder.joinpath(part).read_text(encoding="utf-8") for part in parts).encode()
    return Script(name, text, hashlib.sha1(text, usedforsecurity=False).hexdigest().encode())


CLAIM = _load("claim")
LEAVE = _load("leave")
STAY = _load("stay")
LOOK = _load("look")
RENEW = _load("renew", before=())
CELL = _load("cell", before=())
RIGHTS = _load("rights", before=())

SHARED_CLAIM = _load("shared_claim", before=("common", "shared_common"))
SHARED_LEAVE = _load("shared_leave", before=("common", "shared_common"))
SHARED_STAY = _load("shared_stay", before=("common", "shared_common"))
SHARED_RENEW = _load("shared_renew", before=())

ALL = (CLAIM, LEAVE, STAY, LOOK, RENEW, CELL, RIGHTS, SHARED_CLAIM, SHARED_LEAVE, SHARED_STAY, SHARED_RENEW)
