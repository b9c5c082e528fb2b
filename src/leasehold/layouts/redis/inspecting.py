"""Reads the holders of a lock in another library's format, and those of our clients that wait for it, for people."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from leasehold._model import Kind, Owner, QueueEntry, Ticket, View
from leasehold.layouts.redis.layout import ROLES, Layout
from leasehold.stores.redis.connection.base import ReplyError, Transport, refused
from leasehold.stores.redis.inspecting import SEPARATOR, text_of, ticket_of
from leasehold.stores.redis.key_walk import walk

FOREIGN = "another program"
"""Host shown for a holder that is not one of ours."""

ENDLESS = 1.0
"""Seconds between two looks at a lock whose lease has no end, where the other library notifies."""


def owner(reply: Any) -> Owner | None:
    """Return the holder of the lock, from the reply to a claim that must wait; None if there is none."""
    if not reply[5]:
        return None
    return Owner.parse(text_of(reply[3])) if reply[3] else _foreign(text_of(reply[5]))


async def names(
    transport: Transport, where: str, layout: Layout, namespace: str, prefix: str, within: float
) -> list[str]:
    """Return, in order, the names with this prefix that our clients have used of late, or wait for.

    Raises:
        StoreUnavailable: no answer, or a refusal.
    """
    found = set[str]()
    try:
        for role in (ROLES[0], ROLES[1]):  # a name that we have only waited for has no other key
            async for keys, _ in walk(transport, layout.pattern(namespace, prefix, role), within):
                found.update(filter(None, (layout.name_of(namespace, key) for key in keys)))
    except ReplyError as error:
        raise refused(where, error) from None
    return sorted(name for name in found if name.startswith(prefix))  # on a cluster the pattern has no prefix


def view(layout: Layout, name: str, kind: Kind, reply: Any) -> View:
    """Return what a reply of ``scripts/inspect.lua`` shows."""
    now_ms, limit, last, held, entries = int(reply[0]) / 1000, int(reply[1]), int(reply[2] or 0), reply[3], reply[4]

    def ticket(holder: str, lease: str, who: str, meta: str) -> Ticket:
        made = ticket_of(layout.ticket_of(holder), lease, "0", who, meta)
        return made._replace(terms=replace(made.terms, mode=layout.mode_of(holder, kind, limit)))

    def holding(holder: str, left: float, fields: list[str]) -> QueueEntry:
        mine, fence, who, meta, lease = fields
        if mine == holder:
            return QueueEntry(ticket(holder, lease, who, meta), 0, left, int(fence))
        other = ticket(holder, str(round(max(left, 0.0) * 1000)), "", "")
        other = other._replace(terms=replace(other.terms, owner=_foreign(holder)))
        return QueueEntry(other, 0, left if left >= 0 else float("inf"), None)

    def waiting(holder: str, order: str, fields: list[str]) -> QueueEntry:
        ends, lease, _, who, meta = fields
        return QueueEntry(ticket(holder, lease, who, meta), int(float(order)), (float(ends) - now_ms) / 1000)

    holders = tuple(holding(text_of(id_), int(left) / 1000, list(map(text_of, fields))) for id_, left, fields in held)
    found = [list(map(text_of, entries[at : at + 3])) for at in range(0, len(entries), 3)]
    queued = [(holder, order, entry.split(SEPARATOR, 4)) for holder, order, entry in found]
    waiters = tuple(waiting(*one) for one in queued if not layout.topics or one[2][2].split(" ")[0] == kind.value)
    return View(name, kind, last, holders, waiters)


def _foreign(holder: str) -> Owner:
    """Return the owner that is shown for another program: a part of its id, of which the rest frees the lock."""
    return Owner(FOREIGN, 0, holder[:8])
