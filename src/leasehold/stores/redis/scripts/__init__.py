"""The Lua scripts: files of constant text.

``keep.lua``, ``common.lua`` and ``queue.lua`` precede each script on the queue of one name. ``shared_common.lua``
follows them in scripts on a name with many holders, and ``redlock_common.lua`` in those of one Redlock node. The
uncontended acquire and release, the most frequent steps, are in ``claim_free.lua`` and ``release_free.lua``, which
precede ``queue.lua``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from leasehold.stores.redis.connection.base import bulk


@dataclass(frozen=True, slots=True)
class Script:
    """One script: its text, and the SHA-1 digest by which the server finds it once it has seen the text."""

    name: str
    text: bytes
    digest: bytes

    def by_digest(self, keys: Sequence[bytes], args: Sequence[bytes]) -> bytes:
        """Return a packed call by digest (EVALSHA)."""
        return self.head(len(keys) + len(args)) + b"".join(map(bulk, (b"%d" % len(keys), *keys, *args)))

    def head(self, count: int) -> bytes:
        """Return the beginning of a call by digest with so many keys and arguments; the number of keys follows."""
        return b"*%d\r\n%b" % (3 + count, self._known)

    def by_text(self, keys: Sequence[bytes], args: Sequence[bytes]) -> bytes:
        """Return a packed call that sends the text (EVAL)."""
        return self.in_full(self.by_digest(keys, args))

    def in_full(self, packed: bytes) -> bytes:
        """Turn a packed call by digest into the same call with the text, after the server answered NOSCRIPT."""
        return packed.replace(self._known, bulk(b"EVAL") + bulk(self.text), 1)

    @property
    def _known(self) -> bytes:
        return b"$7\r\nEVALSHA\r\n$40\r\n%b\r\n" % self.digest


_QUEUE = ("keep", "common", "queue")


def _load(name: str, *, before: Sequence[str] = _QUEUE) -> Script:
    return _script(name, _text(*before, name))


def _text(*parts: str) -> str:
    folder = files(__name__)
    return "\n".join(folder.joinpath(f"{part}.lua").read_text(encoding="utf-8") for part in parts)


def _script(name: str, text: str) -> Script:
    written = text.encode()
    return Script(name, written, hashlib.sha1(written, usedforsecurity=False).hexdigest().encode())


def _compose(name: str, **functions: Script) -> Script:
    """Put other scripts before a script, as functions that it calls; their keys and arguments are parameters."""
    parts = [f"local function {word}(KEYS, ARGV)\n{made.text.decode()}\nend" for word, made in functions.items()]
    return _script(name, "\n".join([*parts, _text(name)]))


CLAIM = _load("claim", before=("keep", "common", "claim_free", "queue"))
RELEASE = _load("release", before=("keep", "common", "release_free", "queue"))
RENEW_WAITERS = _load("renew_waiters")
INSPECT = _load("inspect")
RENEW = _load("renew", before=("keep",))
CELL = _load("cell", before=())
RIGHTS = _load("rights", before=())

SHARED_CLAIM = _load("shared_claim", before=(*_QUEUE, "shared_common"))
SHARED_RELEASE = _load("shared_release", before=(*_QUEUE, "shared_common"))
SHARED_RENEW_WAITERS = _load("shared_renew_waiters", before=(*_QUEUE, "shared_common"))
SHARED_RENEW = _load("shared_renew", before=("keep",))

_NODE = (*_QUEUE, "redlock_common")

REDLOCK_CLAIM = _load("redlock_claim", before=("redlock_claim_free", *_NODE))
REDLOCK_RELEASE = _load("redlock_release", before=("redlock_release_free", *_NODE))
REDLOCK_RENEW_WAITERS = _load("redlock_renew_waiters", before=_NODE)
REDLOCK_INSPECT = _load("redlock_inspect", before=_NODE)
REDLOCK_RENEW = _load("redlock_renew", before=("keep",))

CLAIM_MANY = _compose(
    "claim_many", claim=CLAIM, release=RELEASE, claim_shared=SHARED_CLAIM, release_shared=SHARED_RELEASE
)

STRICTLY = {CLAIM: _compose("strict", claim=CLAIM), SHARED_CLAIM: _compose("strict", claim=SHARED_CLAIM)}
"""The script with which strict mode acquires instead."""

ALL = (
    CLAIM,
    RELEASE,
    RENEW_WAITERS,
    INSPECT,
    RENEW,
    CELL,
    RIGHTS,
    SHARED_CLAIM,
    SHARED_RELEASE,
    SHARED_RENEW_WAITERS,
    SHARED_RENEW,
    CLAIM_MANY,
)
