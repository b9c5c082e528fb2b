"""From namespace, name and ticket to the keys of etcd, and the requests that are made of keys.

A lock's keys stand as Go's ``concurrency`` package and ``etcdctl lock`` put them: all that wait or hold have a key
below ``PREFIX/``, and the one with the smallest create revision holds. Go's key is ``PREFIX/LEASE``, ours
``PREFIX/LEASE-TICKET``, with the lease as hexadecimal digits, so one client may stand there more than once.
"""

from __future__ import annotations

import base64
import unicodedata
from dataclasses import dataclass
from typing import Any

from leasehold.stores.etcd.connection.settings import Settings

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one namespace. Each ends what stands before another part with a slash, which no part has in it."""

    locks: str
    cells: str
    graves: str
    marked: str

    @classmethod
    def of(cls, settings: Settings, namespace: str) -> Keys:
        """Make them."""
        stem = f"{settings.root}/{spelled(namespace)}/"
        return cls(settings.locks or f"{stem}lock/", f"{stem}cell/", f"{stem}grave/", f"{stem}mark/")

    def queue(self, name: str) -> str:
        """Return what the keys of all who wait for a name, or hold it, begin with."""
        return f"{self.locks}{spelled(name)}/"

    def names(self, prefix: str) -> str:
        """Return what the keys of all names with this prefix begin with."""
        return f"{self.locks}{spelled(prefix)}"

    def name_of(self, key: str) -> str | None:
        """Return the name that a key below ``locks`` belongs to; None if it is not of the form."""
        name, slash, rest = key.removeprefix(self.locks).partition("/")
        return unspelled(name) if slash and rest and "/" not in rest else None

    def cell(self, name: str) -> str:
        """Return what the two keys of a cell begin with."""
        return f"{self.cells}{spelled(name)}"

    def marks(self, name: str) -> str:
        """Return what the keys begin with of those who entered a shared lock past others."""
        return f"{self.marked}{spelled(name)}/"

    @property
    def unused(self) -> str:
        """A key that nobody writes."""
        return f"{self.graves}none"

    def grave(self, entry: str) -> str:
        """Return the key that keeps a claim from arriving after its leave."""
        return f"{self.graves}{entry}"


def entry_key(lease: int, ticket: str) -> str:
    """Return the last part of the key of a ticket."""
    return f"{lease:x}-{ticket}"


def spelled(part: str) -> str:
    """Percent-encode what separates parts, and what cannot be read: most names stay as they are."""
    return "".join(char if _plain(char) else "".join(f"%{byte:02X}" for byte in char.encode()) for char in part)


def unspelled(part: str) -> str:
    """Read back what `spelled` wrote; what others wrote may be anything."""
    parts = part.split("%")
    out = parts[0].encode()
    for piece in parts[1:]:
        try:
            out += bytes([int(piece[:2], 16)]) + piece[2:].encode()
        except ValueError:
            out += b"%" + piece.encode()
    return out.decode("utf-8", "replace")


def _plain(char: str) -> bool:
    return char not in "%/" and unicodedata.category(char) != "Cc"


# --- requests ----------------------------------------------------------------------------------------------------


def b64(text: str | bytes) -> str:
    """Spell bytes as the gateway wants them."""
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode("ascii")


def unb64(text: str) -> bytes:
    """Read bytes as the gateway sends them."""
    return base64.b64decode(text)


def span(prefix: str) -> Json:
    """Name all keys with a prefix, which is ASCII at its end."""
    data = prefix.encode()
    end = data.rstrip(b"\xff")
    return {"key": b64(data), "range_end": b64(end[:-1] + bytes([end[-1] + 1])) if end else b64(b"\0")}


def only(key: str) -> Json:
    """Name one key."""
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
    """Compare: the key, or all keys of the range, are not there."""
    return created(where, 0)


def created(where: Json, revision: int) -> Json:
    """Compare: it was created at this revision."""
    return {**where, "target": "CREATE", "create_revision": str(revision), "result": "EQUAL"}


def written(where: Json, revision: int) -> Json:
    """Compare: it was last written at this revision."""
    return {**where, "target": "MOD", "mod_revision": str(revision), "result": "EQUAL"}


def version_is(where: Json, version: int) -> Json:
    """Compare: it was written so often since it was created; 0: it is not there."""
    return {**where, "target": "VERSION", "version": str(version), "result": "EQUAL"}


def unwritten_since(where: Json, revision: int) -> Json:
    """Compare: none of the keys was written after this revision. One that was deleted does not count."""
    return {**where, "target": "MOD", "mod_revision": str(revision + 1), "result": "LESS"}


def txn(compare: list[Json], success: list[Json], failure: list[Json] | None = None) -> Json:
    """Make a transaction."""
    return {"compare": compare, "success": success, "failure": failure or []}


def deletions(where: Json, revision: int) -> Json:
    """Watch what is deleted at this revision or after it."""
    watch = {**where, "start_revision": str(revision), "filters": ["NOPUT"], "progress_notify": True, "fragment": True}
    return {"create_request": watch}


def revision_of(answer: Json) -> int:
    """Return the store's revision at an answer."""
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
