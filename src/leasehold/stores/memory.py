"""The store in this process's memory: the reference for what all stores must do, and a store for tests.

``memory:`` is shared by all clients of the process; ``memory:NAME`` is a space of its own. Nothing leaves the process.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from leasehold._model import (
    RESPONSE_TIMEOUT,
    Capabilities,
    Cell,
    Change,
    Finding,
    Granted,
    ReleaseReason,
    RenewalResult,
    Severity,
    Ticket,
    View,
    Wait,
)
from leasehold._rules import Queue
from leasehold._runtimes.base import ProcessMutex, Runtime, Signal
from leasehold._url import StoreURL
from leasehold.stores._common import queues
from leasehold.stores._common.cells import EMPTY, apply_change

IDLE_LIFE = 3600.0
"""Seconds for which an unused name is remembered, so that its tokens keep increasing."""

SWEEP_EVERY = 1024
"""Operations between two sweeps for names to forget."""


@dataclass(eq=False)
class Space:
    """The state that the clients of one space share."""

    mutex: AbstractContextManager[Any]
    queues: dict[tuple[str, str], Queue] = field(default_factory=dict[tuple[str, str], Queue])
    used: dict[tuple[str, str], float] = field(default_factory=dict[tuple[str, str], float])
    cells: dict[tuple[str, str], tuple[Cell, float]] = field(default_factory=dict[tuple[str, str], tuple[Cell, float]])
    signals: dict[str, Signal] = field(default_factory=dict[str, Signal])  # by ticket id, of those who wait
    subscriptions: dict[tuple[str, str], list[Signal]] = field(default_factory=dict[tuple[str, str], list[Signal]])
    operations: int = 0


class Spaces:
    """The spaces of this process by their names, each as long as it has a client."""

    def __init__(self) -> None:
        self._known: weakref.WeakValueDictionary[str, Space] = weakref.WeakValueDictionary()
        self._making = ProcessMutex()

    def of(self, name: str, runtime: Runtime) -> Space:
        """Return a space, or make it. Two threads that do so at the same time get the same."""
        with self._making.mutex:  # the dictionary looks first and stores then
            return self._known.setdefault(name, Space(runtime.mutex()))

    def fresh(self, name: str, inherited: Space, runtime: Runtime) -> Space:
        """Return the space of a forked child that replaces an inherited one; only one thread runs there."""
        space = self._known.get(name)
        if space is None or space is inherited:  # else another client of the space has replaced it already
            space = self._known[name] = Space(runtime.mutex())
        return space


_spaces = Spaces()


class MemoryStore:
    """See `leasehold.store_api.Store` for what each method promises."""

    capabilities = Capabilities(shared=True, permits=True, batches=True, watches=True, crash_bound="with the process")

    def __init__(self, runtime: Runtime, namespace: str, space: str) -> None:
        self._runtime = runtime
        self._namespace = namespace
        self._name = space
        self._space = _spaces.of(space, runtime)

    async def try_acquire(self, name: str, ticket: Ticket, *, join: bool, within: float) -> Granted | Wait:
        since = self._runtime.now()
        with self._space.mutex:
            now = self._runtime.now()  # later: others may have had their turn, which a lease from ``since`` would undo
            step = queues.try_acquire(self._queue(name), ticket, join=join, now=now, floor=self._runtime.wall_us())
            self._write(name, step)
            if step.blocked is None:
                self._space.signals.pop(ticket.id, None)
            elif join and ticket.id not in self._space.signals:
                self._space.signals[ticket.id] = self._runtime.signal()
        return step.answer(since, now)

    async def release(self, name: str, ticket: Ticket, *, reason: ReleaseReason, within: float) -> bool:
        with self._space.mutex:
            waiting = self._space.signals.pop(ticket.id, None)
            if waiting is not None:
                waiting.set()
            now, floor = self._runtime.now(), self._runtime.wall_us()
            step = queues.release(self._queue(name), ticket.id, reason=reason, now=now, floor=floor)
            self._write(name, step)
        return step.found

    async def try_acquire_many(
        self, claims: Sequence[tuple[str, Ticket]], *, keep: bool, within: float
    ) -> Sequence[Granted | Wait]:
        since, steps = self._runtime.now(), list[tuple[str, queues.Step]]()
        with self._space.mutex:
            now = self._runtime.now()
            for name, ticket in claims:
                floor = self._runtime.wall_us()
                steps.append((name, queues.try_acquire(self._queue(name), ticket, join=False, now=now, floor=floor)))
                if steps[-1][1].blocked is not None:
                    steps = steps if keep else steps[-1:]
                    break
            for name, step in steps:
                self._write(name, step)
        return [step.answer(since, now) for _, step in steps]

    async def release_many(self, releases: Sequence[tuple[str, Ticket]], *, within: float) -> Sequence[bool]:
        return [
            await self.release(name, ticket, reason=ReleaseReason.RELEASE, within=within) for name, ticket in releases
        ]

    async def renew(self, tickets: Sequence[tuple[str, Ticket]], *, within: float) -> Sequence[RenewalResult]:
        results: list[RenewalResult] = []
        with self._space.mutex:
            now = self._runtime.now()
            for name, ticket in tickets:
                queue, result = queues.renew(self._queue(name), ticket.id, now)
                self._write(name, queues.Step(queue))
                results.append(result)
        return results

    async def wait(self, name: str, ticket: Ticket, mark: object, *, timeout: float) -> Granted | None:
        """Sleep until the ticket was granted; the next acquire request returns the grant."""
        with self._space.mutex:
            signal = self._space.signals.get(ticket.id)
        if signal is not None:
            await signal.wait(timeout)
            signal.clear()
        return None

    async def inspect(self, prefix: str, *, exact: bool = False, within: float = RESPONSE_TIMEOUT) -> list[View]:
        with self._space.mutex:
            now = self._runtime.now()
            known = [queue for (space, _), queue in self._space.queues.items() if space == self._namespace]
        chosen = [queue for queue in known if (queue.name == prefix if exact else queue.name.startswith(prefix))]
        views = [queues.view(queue, now) for queue in chosen]
        return [view for view in views if view.holders or view.waiters or view.free_in > 0]

    async def compare_and_set(self, name: str, change: Change, *, within: float = RESPONSE_TIMEOUT) -> Cell:
        key = (self._namespace, name)
        with self._space.mutex:
            now = self._runtime.now()
            cell, until = self._space.cells.get(key, (EMPTY, 0.0))
            after = apply_change(cell if until > now else EMPTY, change)
            if after.changed:
                self._space.cells[key] = (after, now + change.ttl)
                for subscriber in self._space.subscriptions.get(key, ()):
                    subscriber.set()
        return after

    async def wait_for_cell(self, name: str, version: int, *, timeout: float) -> None:
        key, signal = (self._namespace, name), self._runtime.signal()
        with self._space.mutex:
            cell, until = self._space.cells.get(key, (EMPTY, 0.0))
            if (cell.version if until > self._runtime.now() else 0) != version:
                return
            self._space.subscriptions.setdefault(key, []).append(signal)
        try:
            await signal.wait(timeout)
        finally:
            with self._space.mutex:
                subscriptions = self._space.subscriptions[key]
                subscriptions.remove(signal)
                if not subscriptions:
                    del self._space.subscriptions[key]

    async def diagnose(self) -> list[Finding]:
        found = "only clients of this process share it"
        return [
            Finding(Severity.NOTE, "memory", found, "locks end with the process", "use sqlite: for several processes")
        ]

    async def close(self) -> None:
        """There is nothing to give back."""

    def after_fork(self) -> None:
        """Start empty in a forked child: its memory is a copy."""
        self._space = _spaces.fresh(self._name, self._space, self._runtime)

    def _queue(self, name: str) -> Queue:
        return self._space.queues.get((self._namespace, name)) or Queue(name)

    def _write(self, name: str, step: queues.Step) -> None:
        space, key = self._space, (self._namespace, name)
        space.queues[key] = step.queue
        space.used[key] = self._runtime.now()
        for entry in step.woken:
            signal = space.signals.get(entry.ticket.id)
            if signal is not None:
                signal.set()
        space.operations += 1
        if space.operations % SWEEP_EVERY == 0:
            self._sweep()

    def _sweep(self) -> None:
        space, now = self._space, self._runtime.now()
        for key in [key for key, used in space.used.items() if used + IDLE_LIFE < now]:
            queue = queues.settle(space.queues[key], now)
            if not queue.entries() and queue.blocked_until <= now:
                del space.queues[key], space.used[key]
        queued = {entry.ticket.id for queue in space.queues.values() for entry in queue.waiters}
        for ticket in [ticket for ticket in space.signals if ticket not in queued]:
            del space.signals[ticket]
        for key in [key for key, (_, until) in space.cells.items() if until <= now]:
            del space.cells[key]

    def __repr__(self) -> str:
        return f"<MemoryStore {self._name!r}>"


@dataclass(frozen=True, slots=True)
class Memory:
    """Opens a space of memory; the same name is the same space."""

    space: str = ""

    def open(self, runtime: Runtime, namespace: str) -> MemoryStore:
        return MemoryStore(runtime, namespace, self.space)


def from_url(url: StoreURL) -> Memory:
    """Read ``memory:`` or ``memory:NAME``."""
    url.refuse_options()
    if url.hosts or url.username or url.password is not None:
        raise ValueError("a memory URL names no server; write memory: or memory:NAME")
    return Memory(url.path.strip("/"))
