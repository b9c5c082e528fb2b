"""Inspection: the holders and waiters of names, of this library, of Curator and others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from leasehold._model import Kind, QueueEntry, View
from leasehold._rules import UNKNOWN
from leasehold.stores.zookeeper import entries, order
from leasehold.stores.zookeeper.connection.errors import NoNode
from leasehold.stores.zookeeper.connection.requests import Node
from leasehold.stores.zookeeper.connection.session import Transport
from leasehold.stores.zookeeper.nodes import LEASES, LOCKS, Contender, Mark, Paths, child_of, parse, read

AT_ONCE = 500
"""Most requests under way at the same time."""


async def look(transport: Transport, paths: Paths, prefix: str, *, exact: bool, until: float) -> list[View]:
    """Return the names in use."""
    names = [prefix] if exact else await _names(transport, paths, prefix, until)
    _, *lists = await _ask(
        transport, [transport.sync(paths.space), *(transport.children(paths.lock(name)) for name in names)], until
    )
    found = {name: children for name, children in zip(names, lists, strict=True) if not isinstance(children, NoNode)}
    views = [
        await _view(transport, paths.lock(name), name, children, until) for name, children in found.items() if children
    ]
    return [view for view in views if view.holders or view.waiters]


async def _names(transport: Transport, paths: Paths, prefix: str, until: float) -> list[str]:
    (parts,) = await transport.ask_all((transport.children(paths.space),), until)
    if isinstance(parts, NoNode):
        return []
    return sorted(name for name in map(read, parts) if name.startswith(prefix))


async def _ask(transport: Transport, requests: Sequence[Any], until: float) -> list[Any]:
    answers: list[Any] = []
    for start in range(0, len(requests), AT_ONCE):
        answers += await transport.ask_all(requests[start : start + AT_ONCE], until)
    return answers


async def _view(transport: Transport, path: str, name: str, children: Sequence[str], until: float) -> View:
    here = [child for child in children if child not in (LOCKS, LEASES)]
    contenders, nodes = await _read(transport, path, here, until)
    if contenders or len(here) == len(children):
        return _queue(name, contenders, nodes)
    lists = await transport.ask_all(
        (transport.children(f"{path}/{LOCKS}"), transport.children(f"{path}/{LEASES}")), until
    )
    queued, leases = (list[str]() if isinstance(one, NoNode) else cast("list[str]", one) for one in lists)
    waiting, nodes = await _read(transport, f"{path}/{LOCKS}", queued, until)
    permits, more = await _read(transport, f"{path}/{LEASES}", leases, until)
    return _semaphore(name, waiting, permits, {**nodes, **more})


async def _read(
    transport: Transport, folder: str, children: Sequence[str], until: float
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
            alongside = str(entries.fields_of(nodes[one.child].data).get("alongside", ""))
            holds = not order.blockers(one, alongside, contenders, created_at)
        else:
            holds = number == 0
        (holders if holds else waiters).append(entries.entry(one, nodes[one.child], number, holds=holds))
    kind = (holders or waiters)[0].ticket.terms.mode.kind if contenders else Kind.MUTEX
    return View(name, kind, _highest(holders), tuple(holders), tuple(waiters))


def _semaphore(name: str, waiting: Sequence[Contender], permits: Sequence[Contender], nodes: dict[str, Node]) -> View:
    groups: dict[str, list[Contender]] = {}
    for one in permits:
        groups.setdefault(one.ticket or one.child, []).append(one)

    def shown(group: Sequence[Contender], number: int, *, holds: bool) -> QueueEntry:
        data = nodes[group[0].child].data
        limit, wanted = entries.limit_of(data) or UNKNOWN, entries.fields_of(data).get("permits")
        count = len(group) if holds or not isinstance(wanted, int) else wanted
        return entries.entry(group[0], nodes[group[0].child], number, holds=holds, limit=limit, permits=count)

    holders = [shown(group, number, holds=True) for number, group in enumerate(groups.values())]
    waiters = [
        shown([one], number, holds=False)
        for number, one in enumerate(waiting)
        if (one.ticket or one.child) not in groups
    ]
    return View(name, Kind.SEMAPHORE, _highest(holders), tuple(holders), tuple(waiters))


def _highest(holders: Sequence[QueueEntry]) -> int:
    return max((entry.token or 0 for entry in holders), default=0)
