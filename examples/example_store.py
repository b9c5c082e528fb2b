"""A complete small store of one's own: a dictionary in this process. It imports from `leasehold.store_api` only.

It is a mutex store: no readers, no permits, no hand-over. A waiter polls, and the first one in the queue enters. The
conformance kit runs on it in ``tests/conformance/test_example_store.py``. A package registers such a store under a URL
scheme with the entry point ``example = "my_package.example_store:from_url"`` in the group ``leasehold.stores``.

    python examples/example_store.py
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from leasehold.store_api import (
    CELL_LIMIT,
    RESPONSE_TIMEOUT,
    Capabilities,
    Cell,
    Change,
    Finding,
    Granted,
    Kind,
    QueueEntry,
    ReleaseReason,
    RenewalResult,
    Runtime,
    Severity,
    Store,
    StoreURL,
    Ticket,
    View,
    Wait,
)

POLL = 0.01
"""Seconds between two looks of a waiter."""


@dataclass
class Name:
    """What the store keeps of one lock: the highest token, the queue in order, and who holds."""

    fence: int = 0
    blocked_until: float = 0.0  # a holder's lease expired, and it asked for a lock delay
    holder: QueueEntry | None = None
    waiters: dict[str, QueueEntry] = field(default_factory=dict)  # by ticket id, in order of arrival

    def settle(self, now: float) -> None:
        """Drop what has expired."""
        if self.holder is not None and self.holder.expires <= now:
            self.blocked_until = self.holder.expires + self.holder.ticket.terms.lock_delay
            self.holder = None
        self.waiters = {id: entry for id, entry in self.waiters.items() if entry.expires > now}

    def is_free(self, ticket: Ticket, now: float) -> bool:
        """Return whether the ticket may hold: there is no holder, and it overtakes no waiter, unless it is unfair."""
        newcomer = ticket.id not in self.waiters
        in_turn = next(iter(self.waiters), ticket.id) == ticket.id or (newcomer and not ticket.terms.mode.fair)
        return self.holder is None and now >= self.blocked_until and in_turn


@dataclass
class Space:
    """What the clients of one store share. One mutex makes each operation atomic."""

    mutex: threading.Lock = field(default_factory=threading.Lock)
    names: dict[tuple[str, str], Name] = field(default_factory=dict)  # by namespace and name
    cells: dict[tuple[str, str], tuple[Cell, float]] = field(default_factory=dict)  # and when each is forgotten


class ExampleStore:
    """The store of one client."""

    capabilities = Capabilities(notifies=False, hands_over=False, crash_bound="with the process")

    def __init__(self, runtime: Runtime, namespace: str, space: Space) -> None:
        self._runtime, self._namespace, self._space = runtime, namespace, space

    def _name(self, name: str, now: float) -> Name:
        found = self._space.names.setdefault((self._namespace, name), Name())
        found.settle(now)
        return found

    async def try_acquire(self, name: str, ticket: Ticket, *, join: bool, within: float) -> Granted | Wait:
        """Hold, or join the queue. Called again with the same ticket, it changes nothing but the expiry."""
        with self._space.mutex:
            now = self._runtime.now()
            found, lease = self._name(name, now), ticket.terms.lease
            if found.holder is not None and found.holder.ticket.id == ticket.id:
                token = found.holder.token or 0
            elif found.is_free(ticket, now):
                token = found.fence = max(found.fence + 1, self._runtime.wall_us())
                found.waiters.pop(ticket.id, None)
            else:
                if join or ticket.id in found.waiters:
                    found.waiters[ticket.id] = QueueEntry(ticket, len(found.waiters), now + lease)
                ahead = found.holder or next(iter(found.waiters.values()), None)
                until = found.blocked_until if ahead is None else max(found.blocked_until, ahead.expires)
                return Wait(None, max(until - now, POLL), None if ahead is None else ahead.ticket.terms.owner)
            found.holder = QueueEntry(ticket, 0, now + lease, token)
            return Granted(token, now, lease)

    async def release(self, name: str, ticket: Ticket, *, reason: ReleaseReason, within: float) -> bool:
        """Remove the ticket. An operator's release counts as an expiry: the holder may still be at work."""
        with self._space.mutex:
            now = self._runtime.now()
            found = self._name(name, now)
            if found.holder is None or found.holder.ticket.id != ticket.id:
                return found.waiters.pop(ticket.id, None) is not None
            found.holder = None
            if reason is ReleaseReason.BREAK:
                found.fence = max(found.fence + 1, self._runtime.wall_us())
                found.blocked_until = now + ticket.terms.lock_delay
            return True

    async def renew(self, tickets: Sequence[tuple[str, Ticket]], *, within: float) -> Sequence[RenewalResult]:
        """Set leases to full length; never revive what has expired."""
        results = list[RenewalResult]()
        with self._space.mutex:
            now = self._runtime.now()
            for name, ticket in tickets:
                found, expires = self._name(name, now), now + ticket.terms.lease
                if found.holder is not None and found.holder.ticket.id == ticket.id:
                    found.holder = replace(found.holder, expires=expires)
                    results.append(RenewalResult.HELD)
                elif ticket.id in found.waiters:
                    found.waiters[ticket.id] = replace(found.waiters[ticket.id], expires=expires)
                    results.append(RenewalResult.QUEUED)
                else:
                    results.append(RenewalResult.GONE)
        return results

    async def wait(self, name: str, ticket: Ticket, mark: object, *, timeout: float) -> Granted | None:
        """Poll until the ticket may hold, is gone, or the time is over; the next `try_acquire` decides."""
        until = self._runtime.now() + timeout
        while (now := self._runtime.now()) < until:
            with self._space.mutex:
                found = self._name(name, now)
                if ticket.id not in found.waiters or found.is_free(ticket, now):
                    return None
            await self._runtime.sleep(min(POLL, until - now))
        return None

    async def inspect(self, prefix: str, *, exact: bool = False, within: float = RESPONSE_TIMEOUT) -> list[View]:
        """Show the names in use, with times from now."""
        views = list[View]()
        with self._space.mutex:
            now = self._runtime.now()
            for space, name in list(self._space.names):
                if space != self._namespace or not (name == prefix if exact else name.startswith(prefix)):
                    continue
                found = self._name(name, now)
                holders, waiters = (
                    tuple(replace(entry, expires=entry.expires - now) for entry in entries)
                    for entries in ([found.holder] if found.holder else [], found.waiters.values())
                )
                free_in = max(0.0, found.blocked_until - now)
                if holders or waiters or free_in:
                    views.append(View(name, Kind.MUTEX, found.fence, holders, waiters, free_in))
        return views

    async def compare_and_set(self, name: str, change: Change, *, within: float = RESPONSE_TIMEOUT) -> Cell:
        """Write the cell if the version and the fence fit; return what it is now."""
        if change.value is not None and len(change.value) > CELL_LIMIT:
            raise ValueError(f"a cell holds at most {CELL_LIMIT} bytes, not {len(change.value)}")
        key = (self._namespace, name)
        with self._space.mutex:
            now = self._runtime.now()
            cell, until = self._space.cells.get(key, (Cell(None, 0), 0.0))
            cell = cell if until > now else Cell(None, 0)
            stale = change.fence is not None and change.fence < cell.fence
            moved = change.if_version is not None and change.if_version != cell.version
            if change.value is None or stale or moved:
                return replace(cell, changed=False)
            cell = Cell(change.value, cell.version + 1, max(cell.fence, change.fence or 0), changed=True)
            self._space.cells[key] = (cell, now + change.ttl)
            return cell

    async def diagnose(self) -> list[Finding]:
        """Report that there is nothing to set."""
        return [Finding(Severity.NOTE, "example", "a dictionary in this process", "locks end with the process")]

    async def close(self) -> None:
        """Nothing to close."""

    def after_fork(self) -> None:
        """Start empty in a forked child: its memory is a copy that no other process sees."""
        self._space = Space()


@dataclass(frozen=True)
class ExampleOpener:
    """Opens the store; all clients of one opener share it."""

    space: Space = field(default_factory=Space)

    def open(self, runtime: Runtime, namespace: str) -> Store:
        """Make the store of one client."""
        return ExampleStore(runtime, namespace, self.space)


OPENER = ExampleOpener()


def from_url(url: StoreURL) -> ExampleOpener:
    """Open ``example:``; this is what the entry point names."""
    url.refuse_options()
    return OPENER


if __name__ == "__main__":
    from leasehold import Client

    with Client(ExampleOpener()) as locks, locks.lock("stock:42") as hold:
        print(f"held with token {hold.token}")
