"""Medallion (DistributedLock for .NET): how it turns a name into a lock of the server, for ``mode=session``.

The rules are those of DistributedLock.Postgres 1.3.0 (`PostgresAdvisoryLockKey`, with ``allowHashing``) and
DistributedLock.MySql 1.0.2 (`MySqlDistributedLock`, without ``exactName``). All else is as in our own session mode.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace

from leasehold._url import StoreURL, Veiled
from leasehold.errors import Unsupported

SHORT = 9
"""Characters of ASCII, of 7 bits each, that are a key as they are."""

LONGEST = 64
"""Characters of the name of a lock on MySQL."""

BASE32 = "abcdefghijklmnopqrstuvwxyz234567"
DIGITS = 32


def session_url(url: StoreURL) -> StoreURL:
    """Return the URL without the layout.

    Raises:
        Unsupported: it is not of ``mode=session``.
    """
    if url.options.get("mode") != "session":
        raise Unsupported(
            "layout=medallion needs mode=session in the URL: Medallion's locks are the server's own, which end with "
            "their session, not rows"
        )
    return replace(url, options=Veiled((key, value) for key, value in url.options.items() if key != "layout"))


def postgres_key(name: str) -> tuple[int, bool]:
    """Return the key of a name on PostgreSQL, and whether it is a pair of numbers of 32 bits, not one of 64.

    Up to 9 characters of ASCII are a pair: 7 bits each, a 0, and 1s. So are two numbers of 8 hexadecimal digits with a
    comma between them. 16 such digits are a single number. Of another name it is the first 8 bytes of its SHA-1.
    """
    if len(name) <= SHORT and name.isascii():
        number = 0
        for character in name:
            number = number << 7 | ord(character)
        free = 7 * (SHORT - len(name))
        return _signed(number << (1 + free) | (1 << free) - 1), True
    if found := re.fullmatch("([0-9a-fA-F]{8})(,?)([0-9a-fA-F]{8})", name):
        return _signed(int(found[1] + found[3], 16)), found[2] == ","
    digest = hashlib.sha1(name.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:8], "little", signed=True), False


def mysql_name(name: str) -> str:
    """Return the name of the lock on MySQL and MariaDB: the name itself if it is short and in lower case.

    Else as much of it in lower case as leaves room for 32 characters of a hash. Characters are counted as .NET does, in
    16 bits each.
    """
    lower = "".join(map(_lower, name)) or "__empty__"
    units = lower.encode("utf-16-le")
    if lower == name and len(units) <= 2 * LONGEST:
        return name
    return units[: 2 * (LONGEST - DIGITS)].decode("utf-16-le", "replace") + _hash(name)


def _hash(name: str) -> str:
    """Return the first 160 bits of SHA-512, from the lowest bit of the first byte on, 5 bits a character."""
    number = int.from_bytes(hashlib.sha512(name.encode()).digest()[:20], "little")
    return "".join(BASE32[number >> 5 * place & 31] for place in range(DIGITS))


def _lower(character: str) -> str:
    """Return one character for one, as .NET's invariant culture does."""
    lower = character.lower()
    return lower if len(lower) == 1 else character


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number
