"""Inspection: the holders and waiters of names, of this library, of Curator and others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from leasehold._model import META_LIMIT, Kind, LeaseTerms, LockMode, QueueEntry, Ticket, View
from leasehold._rules import UNKNOWN
from leasehold.stores.zookeeper import order
from leasehold.stores.zookeeper.connection.requests import Node, names_in
from leasehold.stores.zookeeper.connection.session import Transport
from leasehold.stores.zookeeper.nodes import (
    LEASES,
    LOCKS,
    Contender,
    Mark,
    Paths,
    child_of,
    decode_part,
    fields_of,
    limit_of,
    owner_of,
    parse,
)

AT_ONCE = 500
"""Most requests under way at the same time."""

FOREIGN_LEASE = 30.0
"""Seconds shown as the lease of a holder whose node has none."""


Until = Callable[[], float]  # the end of a request that begins now: many names take several


async def inspect(transport: Transport, paths: Paths, prefix: str, *, exact: bool, until: Until) -> list[View]:
    """Return the names in use."""
    names = [prefix]
    if not exact:
        (parts,) = await transport.ask_all((transport.children(paths.space),), until())
        names = sorted(name for name in map(decode_part, names_in(parts)) if name.startswith(prefix))
    requests = [transport.sync(paths.space), *(transport.children(paths.lock(name)) for name in names)]
    _, *lists = await _ask(transport, requests, until)
    found = {name: children for name, children in zip(names, map(names_in, lists), strict=True) if children}
    views = [await _view(transport, paths.lock(name), name, children, until) for name, children in found.items()]
    return [view for view in views if view.holders or view.waiters]


async def _ask(transport: Transport, requests: Sequence[Any], until: Until) -> list[Any]:
    answers: list[Any] = []
    for start in range(0, len(requests), AT_ONCE):
        answers += await transport.ask_all(requests[start : start + AT_ONCE], until())
    return answers


async def _view(transport: Transport, path: str, name: str, children: Sequence[str], until: Until) -> View:
    here = [child for child in children if child not in (LOCKS, LEASES)]
    contenders, nodes = await _read(transport, path, here, until)
    if contenders or len(here) == len(children):
        return _queue(name, contenders, nodes)
    locks, leases = f"{path}/{LOCKS}", f"{path}/{LEASES}"
    queued, taken = await transport.ask_all((transport.children(locks), transport.children(leases)), until())
    waiting, nodes = await _read(transport, locks, names_in(queued), until)
    permits, more = await _read(transport, leases, names_in(taken), until)
    return _semaphore(name, waiting, permits, {**nodes, **more})


async def _read(
    transport: Transport, folder: str, children: Sequence[str], until: Until
) -> tuple[list[Contender], dict[str, Node]]:
    """Return the contenders below a node, in order, and their nodes."""
    answers = await _ask(transport, [transport.get(f"{folder}/{child}") for child in children], until)
    nodes = {child_of(node.path): node for node in answers if isinstance(node, Node) and node.owner}
    return order.in_order(parse(child) for child in nodes), nodes


def _queue(name: str, contenders: Sequence[Contender], nodes: dict[str, Node]) -> View:
    created_at = {child: node.czxid for child, node in nodes.items()}
    holders: list[QueueEntry] = []
    waiters: list[QueueEntry] = []
    for number, one in enumerate(contenders):
        if one.mark in (Mark.READER, Mark.WRITER):
            alongside = str(fields_of(nodes[one.child].data).get("alongside", ""))
            holds = not order.blockers(one, alongside, contenders, created_at)
        else:
            holds = number == 0
        (holders if holds else waiters).append(_entry(one, nodes[one.child], number, holds=holds))
    kind = (holders or waiters)[0].ticket.terms.mode.kind if contenders else Kind.MUTEX
    return View(name, kind, _highest(holders), tuple(holders), tuple(waiters))


def _semaphore(name: str, waiting: Sequence[Contender], permits: Sequence[Contender], nodes: dict[str, Node]) -> View:
    groups: dict[str, list[Contender]] = {}
    for one in permits:
        groups.setdefault(one.ticket or one.child, []).append(one)

    def shown(group: Sequence[Contender], number: int, *, holds: bool) -> QueueEntry:
        data = nodes[group[0].child].data
        limit, wanted = limit_of(data) or UNKNOWN, fields_of(data).get("permits")
        count = len(group) if holds or not isinstance(wanted, int) else wanted
        return _entry(group[0], nodes[group[0].child], number, holds=holds, limit=limit, permits=count)

    holders = [shown(group, number, holds=True) for number, group in enumerate(groups.values())]
    waiters = [
        shown([one], number, holds=False)
        for number, one in enumerate(waiting)
        if (one.ticket or one.child) not in groups
    ]
    return View(name, Kind.SEMAPHORE, _highest(holders), tuple(holders), tuple(waiters))


def _entry(
    one: Contender, node: Node, number: int, *, holds: bool, limit: int | None = None, permits: int = 1
) -> QueueEntry:
    """Return a contender as a queue entry; one of a semaphore has a ``limit``, which may be `UNKNOWN`.

    The time left of a session is not known. The entry has the lease, which its client renews while it lives.
    """
    fields = fields_of(node.data)
    shared = one.mark in (Mark.READER, Mark.WRITER)
    mode = LockMode(
        Kind.SEMAPHORE if limit is not None else Kind.READ_WRITE if shared else Kind.MUTEX,
        exclusive=one.mark is not Mark.READER,
        upgradeable=one.up and one.mark is Mark.READER,
        permits=permits,
        limit=1 if limit is None else limit,
        fair=bool(fields.get("fair")),
    )
    lease, meta = fields.get("lease"), fields.get("meta", "")
    seconds = float(lease) if isinstance(lease, int | float) and 0 < lease < 1e9 else FOREIGN_LEASE
    meta = meta if isinstance(meta, str) and len(meta) <= META_LIMIT else ""
    terms = LeaseTerms(mode, owner_of(node.data), seconds, meta=meta)
    ticket = Ticket(one.ticket or one.child, terms, str(fields.get("alongside", "")))
    token = node.mzxid if mode.kind is Kind.READ_WRITE else node.czxid
    return QueueEntry(ticket, number, seconds, token if holds else None)


def _highest(holders: Sequence[QueueEntry]) -> int:
    return max((entry.token or 0 for entry in holders), default=0)
