"""The waiting tickets of one client: messages for them, and which of them watches each holder's lease."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import inf
from typing import Protocol, cast

from leasehold._model import Ticket
from leasehold._runtimes.base import Runtime, Signal
from leasehold.stores._common.clock_sample import GrantMessage


class Wakes(Protocol):
    """What wakes a waiter: a `Signal`, or what a transport has instead."""

    def set(self) -> None: ...

    def clear(self) -> None: ...


class Slot:
    """One waiting ticket. ``news`` means that its waiter must look at the slot; it is set before the signal."""

    __slots__ = (
        "grant_message",
        "handed_over",
        "last_reply",
        "lease",
        "listed",
        "name",
        "news",
        "should_retry",
        "signal",
        "ticket",
        "until",
        "watching",
    )

    def __init__(self, name: str, ticket: str) -> None:
        self.name = name
        self.ticket = ticket
        self.news = False
        self.grant_message: GrantMessage | None = None
        self.listed = False  # whether it is listed with the other waiters of the name
        self.watching = False  # whether it watches the holder's lease and has a timer that ends with it
        self.until = 0.0  # boot-time clock at which that lease ends, as of its last request
        self.handed_over: float | None = None  # the same, if a ticket that no longer waits has handed over the watch
        self.should_retry = False  # whether the waiter must retry: not after a hand-over of the watch alone
        self.last_reply = 0  # server time in microseconds of the last reply "wait": older messages are ignored
        self.lease = inf  # seconds, of its ticket
        self.signal: Wakes | None = None  # made at the first wait

    def ready(self, runtime: Runtime) -> Signal:
        if self.signal is None:
            self.signal = runtime.signal()
        return cast("Signal", self.signal)  # this waiter uses no other

    def set(self) -> None:
        signal = self.signal  # once: the waiter may end meanwhile
        if signal is not None:
            signal.set()

    def wake(self) -> None:
        """Let the waiter look at the slot."""
        self.news = True
        self.set()

    def clear(self) -> None:
        """Clear the news. Call it before the check of ``should_retry``: news that come after it are not lost."""
        self.news = False
        if self.signal is not None:
            self.signal.clear()

    def read(self) -> GrantMessage | None:
        """Return the grant message, if there is one, and clear the news."""
        self.news = False
        if self.signal is not None:
            self.signal.clear()
        self.should_retry = False
        grant_message, self.grant_message = self.grant_message, None
        return grant_message


class Slots:
    """All waiting tickets of a client. One waiter of each name watches: its timer ends with the holder's lease.

    Safe to use from many threads at once. A slot is made before each acquire request, and most are dropped at its
    reply. So it is added and removed without the mutex, and listed under the mutex only when the reply says that it
    waits.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.forget_all()

    def forget_all(self) -> None:
        """Forget all slots in a forked child: they are the parent's."""
        self._mutex = self._runtime.mutex()
        self._slots: dict[str, Slot] = {}
        self.get = self._slots.get
        """Returns the slot of a ticket that waits, or None."""
        self._by_name: dict[str, dict[str, Slot]] = defaultdict(dict)

    def __contains__(self, ticket: str) -> bool:
        return ticket in self._slots

    def __iter__(self) -> Iterator[Slot]:
        with self._mutex:
            return iter(list(self._slots.values()))

    def add(self, name: str, ticket: Ticket) -> Slot:
        """Return the slot of a ticket, made if it has none."""
        slot = self._slots.get(ticket.id)
        if slot is None:
            slot = self._slots[ticket.id] = Slot(name, ticket.id)
        return slot

    def enlist(self, slot: Slot) -> bool:
        """List a slot as waiting; return whether it watches the holder's lease, as the longest waiter does."""
        with self._mutex:
            slot.listed = True  # before the check below: `remove` deletes an unlisted slot and then reads this again
            if self._slots.get(slot.ticket) is slot:
                self._by_name[slot.name].setdefault(slot.ticket, slot)
            waiting = self._by_name.get(slot.name)
            slot.watching = waiting is not None and next(iter(waiting.values()), None) is slot
            return slot.watching

    def first(self, name: str) -> Slot | None:
        """Return the longest waiter for ``name``."""
        with self._mutex:
            return self._first(name)

    def next_to_watch(self, name: str) -> Slot | None:
        """Return the longest waiter for ``name`` if it does not watch the holder's lease yet: it must begin."""
        with self._mutex:
            first = self._first(name)
            return None if first is None or first.watching else first

    def remove(self, ticket: str) -> Slot | None:
        """Remove a ticket. If it watched the lease, return the slot that must watch it instead, if there is one.

        An exception of a signal handler may end it at any step. Then the caller removes the ticket again: so the slot
        is deleted last, and it keeps in `watching` what its place in the list no longer shows.
        """
        slot = self._slots.get(ticket)
        if slot is None:
            return None
        if not slot.listed:
            self._slots.pop(ticket, None)
            if not slot.listed:
                return None
        with self._mutex:
            waiting = self._by_name.get(slot.name, {})
            watched = slot.watching or next(iter(waiting), "") == ticket
            waiting.pop(ticket, None)
            if not waiting:
                self._by_name.pop(slot.name, None)
            self._slots.pop(ticket, None)
            return next(iter(waiting.values()), None) if watched else None

    def _first(self, name: str) -> Slot | None:
        return next(iter(self._by_name[name].values()), None) if name in self._by_name else None
