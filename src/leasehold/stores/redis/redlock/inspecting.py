"""Shows names on a Redlock: what a majority of its nodes knows about them, or may know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from leasehold._model import Kind, LeaseTerms, LockMode, Owner, QueueEntry, Ticket, View
from leasehold._runtimes.base import Runtime
from leasehold.stores.redis import keys
from leasehold.stores.redis.connection.base import ReplyError, pack, refused
from leasehold.stores.redis.inspecting import SEPARATOR
from leasehold.stores.redis.redlock import protocol
from leasehold.stores.redis.redlock.node import Node
from leasehold.stores.redis.redlock.nodes import QuorumNodes
from leasehold.stores.redis.scripts.commands import PER_SCRIPT, chunks

WITHIN = 5.0
"""Seconds that a node may take for each question."""

SLOW = 0.25
"""Seconds to wait for slow nodes, once a majority has answered."""


async def inspect(runtime: Runtime, quorum: QuorumNodes, namespace: str, prefix: str, *, exact: bool) -> list[View]:
    """Return the names that a majority of the nodes knows as held, waited for, or blocked by a lock delay."""

    async def ask(node: Node) -> dict[str, Any]:
        names = [prefix] if exact else await _names(node, namespace, prefix)
        found: dict[str, Any] = {}
        for some in chunks(names, PER_SCRIPT):
            looks = [protocol.inspect(namespace, name) for name in some]
            for name, reply in zip(some, await node.run_all(looks, WITHIN), strict=True):
                if isinstance(reply, ReplyError):
                    raise refused(node.where, reply)
                found[name] = reply
        return found

    call = quorum.ask_in_background(ask)
    await call.until(lambda call: len(call.answers) >= quorum.majority, runtime.now() + WITHIN)
    answers = await call.linger(lambda _: False, runtime.now() + SLOW)
    if len(answers) < quorum.majority:
        raise quorum.too_few(call, answers, "answered", {})
    names = sorted({name for found in answers.values() for name in found})
    views = (
        view(name, [found[name] for found in answers.values() if name in found], answers, quorum) for name in names
    )
    return [view for view in views if view.holders or view.waiters or view.free_in > 0]


async def _names(node: Node, namespace: str, prefix: str) -> list[str]:
    """Return the names beginning with ``prefix`` for which a node has given a vote, or knows a lock delay.

    Raises:
        StoreUnavailable: no answer, or a refusal.

    """
    found = dict[str, None]()
    pattern = keys.lock_pattern(namespace, prefix, "vote")
    cursor = b""
    while cursor != b"0":
        scan = pack(b"SCAN", cursor or b"0", b"MATCH", pattern, b"COUNT", b"1000")
        reply = await node.transport.call(scan, within=WITHIN)
        if isinstance(reply, ReplyError):
            raise refused(node.where, reply)
        cursor = reply[0]
        found.update(dict.fromkeys(map(keys.name_of, reply[1])))
    return list(found)


def view(name: str, replies: Sequence[Any], answers: Mapping[int, Any], quorum: QuorumNodes) -> View:
    """Combine what the nodes that answered know about one name."""
    silent = len(quorum) - len(answers)
    voted: dict[str, list[QueueEntry]] = {}
    blocked_until: list[float] = []
    for reply in replies:
        entry = _voted(reply)
        if entry is not None and entry.ticket.id:
            voted.setdefault(entry.ticket.id, []).append(entry)
        elif int(reply[2]) > 0:
            blocked_until.append(int(reply[2]) / 1000)
    top = max((int(reply[3]) for reply in replies), default=0)
    best = max(voted.values(), key=len, default=list[QueueEntry]())
    waiters = _waiters(replies, len(answers), best[0].ticket.id if best else "")
    if best and len(best) + silent >= quorum.majority and 2 * len(best) > len(answers):
        entry = best[0]
        left = sorted((one.expires for one in best), reverse=True)[min(quorum.majority, len(best)) - 1]
        return View(name, Kind.MUTEX, entry.token or top, (replace(entry, expires=left),), waiters)
    free_in = sorted(blocked_until)[-quorum.majority] if len(blocked_until) >= quorum.majority else 0.0
    return View(name, Kind.MUTEX, top, (), waiters, free_in)


def _voted(reply: Any) -> QueueEntry | None:
    """Return who has the vote of one node; None if only its lock delay is left."""
    ticket, token, lease, lock_delay, owner, meta = (_text(field) for field in reply[1])
    left = (int(reply[2]) - int(lock_delay or 0)) / 1000
    if not ticket or left <= 0:
        return None
    return QueueEntry(_ticket(ticket, lease, lock_delay, owner, meta), 0, left, int(token))


def _waiters(replies: Sequence[Any], answered: int, holder: str) -> tuple[QueueEntry, ...]:
    found: dict[str, list[QueueEntry]] = {}
    for reply in replies:
        now_ms, entries = int(reply[0]) / 1000, [_text(part) for part in reply[4]]
        for ticket, order, expires, fields in zip(
            entries[::4], entries[1::4], entries[2::4], entries[3::4], strict=True
        ):
            _, lease, lock_delay, owner, meta = fields.split(SEPARATOR, 4)
            left = (float(expires) - now_ms) / 1000
            if left > 0 and ticket != holder:
                entry = QueueEntry(_ticket(ticket, lease, lock_delay, owner, meta), int(float(order)), left)
                found.setdefault(ticket, []).append(entry)
    alive = [min(entries, key=lambda entry: entry.expires) for entries in found.values() if 2 * len(entries) > answered]
    return tuple(sorted(alive, key=lambda entry: entry.order))


def _ticket(ticket: str, lease: str, lock_delay: str, owner: str, meta: str) -> Ticket:
    terms = LeaseTerms(LockMode(), Owner.parse(owner), int(float(lease or 0)) / 1000, int(lock_delay or 0) / 1000, meta)
    return Ticket(ticket, terms)


def _text(value: Any) -> str:
    return "" if value is None else value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
