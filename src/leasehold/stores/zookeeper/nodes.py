"""Nodes: their paths, their names (the lock, the ticket and the order of a node), and their data. Pure.

A contender for a lock is a child of the lock's node, named as Apache Curator names it:

    _c_<UUID>-lock-0000000017          a lock
    _c_<UUID>-__READ__0000000017       a reader
    _c_<UUID>-__WRIT__0000000017       a writer
    _c_<UUID>-lease-0000000017         a permit of a semaphore, below ``leases``

The UUID is the ticket's 128 random bits. The *sort key* of a contender is what follows the last mark; contenders are
ordered by it as text. A name without a mark is its own sort key, as with Curator (`StandardLockInternalsDriver`). A
node alongside another has the same sort key, as Curator's reader inside a writer. An upgradeable reader, and the
writer that it becomes, have ``up-`` before the mark, which Curator takes for a part of the prefix.
"""

from __future__ import annotations

import base64
import enum
import json
import re
import uuid
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast
from urllib.parse import quote, unquote

from leasehold._model import Kind, Owner, Ticket, ticket_id

_PLAIN = "!#$&'()+,-.:;<=>@_|{}[]*?^`\" "  # '~' is ours, '/' ends a name; both are encoded, and so is what is not ASCII

LOCKS, LEASES = "locks", "leases"
"""Children of a semaphore's node: the queue for permits, and the permits."""


class Mark(enum.StrEnum):
    """What a contender requests."""

    LOCK = "lock-"
    READER = "__READ__"
    WRITER = "__WRIT__"
    LEASE = "lease-"


@dataclass(frozen=True, slots=True)
class Contender:
    """A child of a lock's node.

    Attributes:
        child: its name.
        mark: None if it has none; Curator orders it all the same.
        sort_key: what contenders are ordered by.
        ticket: the ticket's id, from the UUID; empty if there is none.
        up: whether it is an upgradeable reader, or the writer that such a one becomes.
    """

    child: str
    mark: Mark | None
    sort_key: str
    ticket: str = ""
    up: bool = False


_OURS = re.compile(r"_c_([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-(up-)?(?=lock-|lease-|__READ__|__WRIT__)")


@lru_cache(maxsize=8192)  # all waiters for a name parse the same ones
def parse(child: str) -> Contender:
    """Read a child's name."""
    found = _OURS.match(child)
    ticket = ticket_id(uuid.UUID(found[1]).bytes) if found else ""
    for mark in Mark:
        _, has, sort_key = child.rpartition(mark)
        if has:
            return Contender(child, mark, sort_key, ticket, bool(found and found[2]))
    return Contender(child, None, child)


def stem(ticket: str, mark: Mark, *, up: bool = False) -> str:
    """Return a contender's name without its sort key."""
    raw = base64.urlsafe_b64decode(ticket + "==")
    return f"_c_{uuid.UUID(bytes=raw)}-{'up-' if up else ''}{mark}"


def encode_part(text: str) -> str:
    """Encode any text as one part of a path, injectively."""
    part = quote(text, safe=_PLAIN).replace("~", "%7E")  # `quote` leaves '~' as it is
    return part.replace(".", "%2E") if part in (".", "..") else part


def decode_part(part: str) -> str:
    """Decode the output of `encode_part`."""
    return unquote(part)


@dataclass(frozen=True, slots=True)
class Paths:
    """The paths of the nodes of one namespace.

    Attributes:
        chroot: empty, or an absolute path without a slash at its end.
        namespace: as it was given; empty if the locks are children of the chroot.
    """

    chroot: str
    namespace: str

    @property
    def space(self) -> str:
        """The parent of the nodes of locks."""
        if not self.namespace:
            return self.chroot
        part = encode_part(self.namespace)
        return f"{self.chroot}/{'%7Aookeeper' if part == 'zookeeper' else part}"  # the server reserves that name

    @property
    def cells(self) -> str:
        """The parent of the nodes of cells; no encoded namespace contains '~'."""
        return f"{self.space}~cells"

    @property
    def clock(self) -> str:
        """The node below which the server's clock is read."""
        return f"{self.space}~clock"

    def lock(self, name: str) -> str:
        """Return the node below which the contenders of a lock are."""
        return f"{self.space}/{encode_part(name)}"

    def cell(self, name: str) -> str:
        return f"{self.cells}/{encode_part(name)}"


def path_prefixes(path: str) -> list[str]:
    """Return all paths from the first below the root to ``path``, inclusive."""
    parts = path.strip("/").split("/")
    return ["/" + "/".join(parts[: count + 1]) for count in range(len(parts))]


def child_of(path: str) -> str:
    """Return the last part of a path."""
    return path.rpartition("/")[2]


# --- data --------------------------------------------------------------------------------------------------------


def data_of(ticket: Ticket) -> bytes:
    """Encode a ticket's terms: one line of JSON, at most some 1.5 KiB, for people and for rules beyond Curator's.

    Curator does not read it, and writes an address as data.
    """
    terms, mode = ticket.terms, ticket.terms.mode
    fields: dict[str, Any] = {"owner": str(terms.owner), "lease": terms.lease}
    if terms.meta:
        fields["meta"] = terms.meta
    if mode.fair:
        fields["fair"] = True
    if mode.kind is Kind.SEMAPHORE:
        fields.update(permits=mode.permits, limit=mode.limit)
    if ticket.alongside:
        fields["alongside"] = ticket.alongside
    return json.dumps(fields, ensure_ascii=False).encode()


def fields_of(data: bytes) -> dict[str, Any]:
    """Decode a node's data; the data of another program yields an owner at most."""
    try:
        fields: Any = json.loads(data)
    except (ValueError, RecursionError):
        fields = None
    found = cast("dict[str, Any]", fields) if isinstance(fields, dict) else {}
    if isinstance(found.get("owner"), str):
        return found
    text = data[:64].decode(errors="replace")
    return {"owner": text if text.isprintable() and text else "another client"}


def owner_of(data: bytes) -> Owner:
    """Return the owner in the data."""
    return Owner.parse(str(fields_of(data)["owner"])[:256])


def limit_of(data: bytes) -> int | None:
    """Return the limit in the data of a permit's node; None if it is not ours."""
    limit = fields_of(data).get("limit")
    return limit if isinstance(limit, int) and limit > 0 else None
