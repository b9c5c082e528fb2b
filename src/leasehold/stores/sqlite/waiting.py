"""The waiters of one client, and the three ways to wake them: directly, by a datagram, by a periodic check."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from leasehold._runtimes.base import Flavor, Runtime, Signal
from leasehold.stores._common.hints import KEY_BYTES, HintSignal, hint
from leasehold.stores.sqlite.machine import Machine

LOOK_EVERY = 0.25
"""Seconds between two checks for dead holders and lost hints: about the delay after a crash or a lost hint."""

Look = Callable[[Mapping[str, str]], Sequence[str]]
"""Takes each name with waiters, and our first ticket there; returns the tickets that must check again."""


@dataclass(frozen=True, slots=True)
class Waiter:
    """A waiting ticket of this client."""

    name: str
    signal: Signal


class Waiters:
    """Safe to use from any thread. The thread for notifications runs only while there are waiters."""

    def __init__(self, runtime: Runtime, machine: Machine, look: Look) -> None:
        self._runtime = runtime
        self._machine = machine
        self._worth_asking = look
        self._mutex = runtime.mutex()
        self._waiting: dict[str, Waiter] = {}  # by ticket, in order of arrival
        self._hint_signal: HintSignal | None = None

    def expect(self, name: str, ticket: str) -> str | None:
        """Register a waiter; return the address for its hints, None if it must poll.

        Called before its entry is written, so that no hint finds nobody.
        """
        with self._mutex:
            if ticket not in self._waiting:
                self._waiting[ticket] = Waiter(name, self._runtime.signal())
            if self._hint_signal is None and self._runtime.flavor is not Flavor.SIMULATED:
                key, network = self._runtime.random_bytes(KEY_BYTES), self._machine.network()
                self._hint_signal = HintSignal(
                    key, network, rung=self.wake, look=self._look, waited_for=self._waited_for, every=LOOK_EVERY
                )
            hint_signal = self._hint_signal
        return None if hint_signal is None else hint_signal.listen()

    def forget(self, ticket: str) -> None:
        """Remove a waiter, and wake a caller that still sleeps for it, as when the client is closed."""
        with self._mutex:
            waiter = self._waiting.pop(ticket, None)
        if waiter is not None:
            waiter.signal.set()

    def signal(self, ticket: str) -> Signal | None:
        """Return the signal on which the ticket's task or thread sleeps."""
        with self._mutex:
            waiter = self._waiting.get(ticket)
        return None if waiter is None else waiter.signal

    def wake(self, ticket: str) -> None:
        """Let a waiter of this client check again, if there is one."""
        signal = self.signal(ticket)
        if signal is not None:
            signal.set()

    def set(self, hints: Mapping[str, str]) -> None:
        """Notify the waiters with these tickets, in this client or at these addresses."""
        for ticket, address in hints.items():
            signal = self.signal(ticket)
            if signal is not None:
                signal.set()
            elif address:
                hint(address, ticket, self._machine.network())

    def close(self) -> None:
        """End the thread and its socket."""
        with self._mutex:
            hint_signal, self._hint_signal = self._hint_signal, None
        if hint_signal is not None:
            hint_signal.close()

    def after_fork(self) -> None:
        """Close the copy of the socket in a forked child. The waiters are the parent's."""
        if self._hint_signal is not None:
            self._hint_signal.after_fork()

    def _waited_for(self) -> bool:
        with self._mutex:
            return bool(self._waiting)

    def _look(self) -> bool:
        """Check for all waiters at once; return whether there are any."""
        with self._mutex:
            waiting = {ticket: waiter.name for ticket, waiter in self._waiting.items()}
        if not waiting:
            return False
        first = {name: ticket for ticket, name in reversed(waiting.items())}
        for ticket in self._worth_asking(first):
            self.wake(ticket)
        return True
