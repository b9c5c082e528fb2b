"""The keys of etcd for a namespace, a name and a ticket, and the requests with keys in them.

The keys of a lock have the layout of Go's ``concurrency`` package and of ``etcdctl lock``: each holder and waiter has a
key below ``PREFIX/``, and the one with the smallest create revision holds. Go's key is ``PREFIX/LEASE``, ours
``PREFIX/LEASE-TICKET``, with the lease as hexadecimal digits, so one client may have several keys there.
"""

from __future__ import annotations

import base64
import unicodedata
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from leasehold.stores.etcd.connection.settings import Settings

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Keys:
    """The prefixes of the keys of one namespace. Each part ends with a slash, and contains no other."""

    locks: str
    cells: str
    tombstones: str
    marks_prefix: str

    @classmethod
    def of(cls, settings: Settings, namespace: str) -> Keys:
        """Derive them from the settings."""
        stem = f"{settings.root}/{encode_part(namespace)}/"
        return cls(settings.locks or f"{stem}lock/", f"{stem}cell/", f"{stem}grave/", f"{stem}mark/")

    def queue(self, name: str) -> str:
        """Return the prefix of the keys of all holders and waiters of a name."""
        return f"{self.locks}{encode_part(name)}/"

    def names(self, prefix: str) -> str:
        """Return the prefix of the keys of all names that begin with ``prefix``."""
        return f"{self.locks}{encode_part(prefix)}"

    def name_of(self, key: str) -> str | None:
        """Return the name that a key below ``locks`` belongs to; None if it has another form."""
        name, slash, rest = key.removeprefix(self.locks).partition("/")
        return decode_part(name) if slash and rest and "/" not in rest else None

    def cell(self, name: str) -> str:
        """Return the prefix of the two keys of a cell."""
        return f"{self.cells}{encode_part(name)}"

    def marks(self, name: str) -> str:
        """Return the prefix of the marks of tickets that overtook waiters of a shared lock."""
        return f"{self.marks_prefix}{encode_part(name)}/"

    @property
    def unused(self) -> str:
        """A key that is never written."""
        return f"{self.tombstones}none"

    def tombstone(self, entry: str) -> str:
        """Return the key that makes an acquire request do nothing if it arrives after the release of its ticket."""
        return f"{self.tombstones}{entry}"


def entry_key(lease: int, ticket: str) -> str:
    """Return the last part of the key of a ticket."""
    return f"{lease:x}-{ticket}"


def encode_part(part: str) -> str:
    """Percent-encode separators and control characters; most names stay as they are."""
    return "".join(char if _plain(char) else "".join(f"%{byte:02X}" for byte in char.encode()) for char in part)


def decode_part(part: str) -> str:
    """Decode the output of `encode_part`; other texts are decoded as far as possible."""
    return unquote(part, errors="replace")


def _plain(char: str) -> bool:
    return char not in "%/" and unicodedata.category(char) != "Cc"


# --- requests ----------------------------------------------------------------------------------------------------


def b64(text: str | bytes) -> str:
    """Encode bytes for the gateway."""
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode("ascii")


def unb64(text: str) -> bytes:
    """Decode bytes from the gateway."""
    return base64.b64decode(text)


def key_of(kv: Json) -> str:
    """Return the key of a key and its value."""
    return unb64(kv["key"]).decode("utf-8", "replace")


def span(prefix: str) -> Json:
    """Select all keys with a prefix, whose last character is ASCII."""
    data = prefix.encode()
    end = data.rstrip(b"\xff")
    return {"key": b64(data), "range_end": b64(end[:-1] + bytes([end[-1] + 1])) if end else b64(b"\0")}


def only(key: str) -> Json:
    """Select one key."""
    return {"key": b64(key)}


def ranged(where: Json, **options: Any) -> Json:
    """Read keys."""
    return {"request_range": {**where, **options}}


FIRST = {"sort_order": "ASCEND", "sort_target": "CREATE", "limit": "1"}
LAST = {"sort_order": "DESCEND", "sort_target": "CREATE", "limit": "1", "keys_only": True}


def put(key: str, value: bytes, lease: int) -> Json:
    """Write a key under a lease."""
    return {"request_put": {"key": b64(key), "value": b64(value), "lease": str(lease)}}


def deleted(where: Json) -> Json:
    """Delete keys."""
    return {"request_delete_range": where}


def absent(where: Json) -> Json:
    """Compare: the key, or every key of the range, does not exist."""
    return created(where, 0)


def created(where: Json, revision: int) -> Json:
    """Compare: it was created at this revision."""
    return {**where, "target": "CREATE", "create_revision": str(revision), "result": "EQUAL"}


def written(where: Json, revision: int) -> Json:
    """Compare: it was last written at this revision."""
    return {**where, "target": "MOD", "mod_revision": str(revision), "result": "EQUAL"}


def version_is(where: Json, version: int) -> Json:
    """Compare: it was written ``version`` times since it was created; 0: it does not exist."""
    return {**where, "target": "VERSION", "version": str(version), "result": "EQUAL"}


def unwritten_since(where: Json, revision: int) -> Json:
    """Compare: none of the existing keys was written after this revision; deleted keys are not compared."""
    return {**where, "target": "MOD", "mod_revision": str(revision + 1), "result": "LESS"}


def txn(compare: list[Json], success: list[Json], failure: list[Json] | None = None) -> Json:
    """Build a transaction."""
    return {"compare": compare, "success": success, "failure": failure or []}


def deletions(where: Json, revision: int) -> Json:
    """Watch the deletions at this revision and after it."""
    watch = {**where, "start_revision": str(revision), "filters": ["NOPUT"], "progress_notify": True, "fragment": True}
    return {"create_request": watch}


def revision_of(answer: Json) -> int:
    """Return the store's revision in a response."""
    return int(answer.get("header", {}).get("revision", 0))


def found(answer: Json, index: int) -> list[Json]:
    """Return the keys and values that the range at ``index`` of a transaction found."""
    responses: list[Json] = answer.get("responses", [])
    if index >= len(responses):
        return []
    kvs: list[Json] = responses[index].get("response_range", {}).get("kvs", [])
    return kvs


def removed(answer: Json, index: int) -> int:
    """Return how many keys the deletion at ``index`` of a transaction removed."""
    responses: list[Json] = answer.get("responses", [])
    return int(responses[index].get("response_delete_range", {}).get("deleted", 0)) if index < len(responses) else 0
