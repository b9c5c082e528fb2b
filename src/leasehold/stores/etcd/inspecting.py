"""Inspection: the holders and waiters of names, also those of other programs, and the time left of each lease."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from leasehold._model import Kind, QueueEntry, View
from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores.etcd import entries
from leasehold.stores.etcd.connection.gateway import Gateway
from leasehold.stores.etcd.entries import QueueKey
from leasehold.stores.etcd.keys import Json, Keys, b64, span, unb64

WITHIN = 5.0
"""Seconds that each request may take."""

PAGE = 500
"""Keys in one answer."""

AT_ONCE = 8
"""Leases queried at the same time."""

UNDER_A_SECOND = 0.5
"""Seconds shown for a lease with less than a second left: etcd reports whole seconds."""


async def inspect(
    runtime: Runtime, gateway: Gateway, keys: Keys, prefix: str, *, exact: bool, within: float
) -> list[View]:
    """Return the names in use that begin with ``prefix``, or with ``exact`` the name itself."""
    names = defaultdict[str, list[QueueKey]](list)
    for kv in await _read(runtime, gateway, keys.queue(prefix) if exact else keys.names(prefix), within):
        one = entries.read_key(kv)
        name = keys.name_of(one.key)
        if name is not None:
            names[name].append(one)
    leases = sorted({one.lease for some in names.values() for one in some if one.lease})
    left = await _left(runtime, gateway, leases, within)
    views = [_view(name, sorted(some, key=lambda one: one.created), left) for name, some in sorted(names.items())]
    return [view for view in views if view.holders or view.waiters]


async def _read(runtime: Runtime, gateway: Gateway, prefix: str, within: float) -> list[Json]:
    where, kvs = span(prefix), list[Json]()
    while True:
        body = {**where, "limit": str(PAGE)}
        response = await gateway.call("/v3/kv/range", body, runtime.now() + within)
        some: list[Json] = response.get("kvs", [])
        kvs += some
        if not response.get("more"):
            return kvs
        where = {**where, "key": b64(unb64(some[-1]["key"]) + b"\0")}


async def _left(runtime: Runtime, gateway: Gateway, leases: Sequence[int], within: float) -> dict[int, float]:
    """Return the seconds left of each lease; a lease that has ended is missing."""
    left = dict[int, float]()
    for start in range(0, len(leases), AT_ONCE):
        some, until = leases[start : start + AT_ONCE], runtime.now() + within
        answers = await runtime.gather(
            *(gateway.call("/v3/lease/timetolive", {"ID": str(lease)}, until) for lease in some)
        )
        for lease, answer in zip(some, answers, strict=True):
            if isinstance(answer, StoreUnavailable):
                raise answer
            if isinstance(answer, dict) and (ttl := int(answer.get("TTL", 0))) >= 0:
                left[lease] = float(ttl) or UNDER_A_SECOND
    return left


def _view(name: str, present: Sequence[QueueKey], left: dict[int, float]) -> View:
    present = [one for one in present if not one.lease or one.lease in left]
    kind = present[0].mode.kind if present else Kind.MUTEX
    holders, waiters = list[QueueEntry](), list[QueueEntry]()
    for index, one in enumerate(present):
        holds = index == 0 if kind is Kind.MUTEX else one.holds
        token = (one.created if kind is Kind.MUTEX else one.written) if holds else None
        remaining = left.get(one.lease, float("inf"))
        ticket = one.ticket._replace(terms=replace(one.ticket.terms, lease=min(one.ticket.terms.lease, 1e9)))
        (holders if holds else waiters).append(QueueEntry(ticket, one.created, remaining, token))
    return View(name, kind, max((entry.token or 0 for entry in holders), default=0), tuple(holders), tuple(waiters))
