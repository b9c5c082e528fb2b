"""The Lua scripts: files of constant text, with ``common.lua`` put before those on the queue of one name."""

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


def _load(name: str, *, common: bool = True) -> Script:
    folder = files(__name__)
    parts = ["common.lua", f"{name}.lua"] if common else [f"{name}.lua"]
    text = "\n".join(folder.joinpath(part).read_text(encoding="utf-8") for part in parts).encode()
    return Script(name, text, hashlib.sha1(text, usedforsecurity=False).hexdigest().encode())


CLAIM = _load("claim")
LEAVE = _load("leave")
STAY = _load("stay")
LOOK = _load("look")
RENEW = _load("renew", common=False)
CELL = _load("cell", common=False)
RIGHTS = _load("rights", common=False)

ALL = (CLAIM, LEAVE, STAY, LOOK, RENEW, CELL, RIGHTS)
