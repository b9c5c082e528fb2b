"""Names as keys of advisory locks of PostgreSQL.

64 bits of a keyed hash of namespace and name: two names, or another library, collide only by chance.
All our advisory locks use it, so they exclude each other.
"""

from __future__ import annotations

from hashlib import blake2b

HASH_KEY = b"leasehold advisory lock 1"


def key_of(namespace: str, name: str) -> int:
    """Return the key of a name, as a signed 64-bit number."""
    space = namespace.encode()
    text = len(space).to_bytes(4, "big") + space + name.encode()
    return int.from_bytes(blake2b(text, digest_size=8, key=HASH_KEY).digest(), "big", signed=True)
