"""The store in memory, and a thread that is preempted: before its turn at the mutex, or as it makes the space."""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Thread
from types import TracebackType
from typing import Any

import pytest

from leasehold._model import Change, Granted, LeaseTerms, LockMode, Owner, RenewalResult, Ticket, Wait
from leasehold._runtimes.base import run_sync
from leasehold._runtimes.manual import ManualBlockingRuntime, ManualClock
from leasehold.stores import memory
from leasehold.stores.memory import MemoryStore

LEASE = 10.0


class Preempted:
    """A mutex at whose next turn something else happens first."""

    def __init__(self, mutex: Any, meanwhile: Callable[[], None]) -> None:
        self.mutex = mutex
        self.meanwhile: Callable[[], None] | None = meanwhile

    def __enter__(self) -> None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        self.mutex.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.mutex.__exit__(kind, error, at)


def ticket(name: str) -> Ticket:
    return Ticket(name * 22, LeaseTerms(LockMode(), Owner("host", 1, "client"), LEASE))


def test_a_repeated_acquire_does_not_shorten_what_a_renewal_gave_meanwhile() -> None:
    clock = ManualClock()
    store, mine, results = MemoryStore(ManualBlockingRuntime(clock), "n", "preempted"), ticket("a"), list[object]()

    def acquire(one: Ticket) -> Granted | Wait:
        return run_sync(store.try_acquire("x", one, join=False, within=5.0))

    def renew() -> None:
        clock.advance(3.0)
        results.extend(run_sync(store.renew([("x", mine)], within=5.0)))

    assert isinstance(acquire(mine), Granted)
    clock.advance(5.0)
    store._space.mutex = Preempted(store._space.mutex, renew)
    assert isinstance(acquire(mine), Granted)
    assert results == [RenewalResult.HELD]
    clock.advance(LEASE - 1.0)
    assert isinstance(acquire(ticket("b")), Wait)


def test_a_cell_that_has_expired_meanwhile_is_not_written_as_if_it_lived() -> None:
    clock = ManualClock()
    store, seen = MemoryStore(ManualBlockingRuntime(clock), "n", "preempted cell"), list[object]()

    def change(**fields: Any) -> Any:
        return run_sync(store.compare_and_set("c", Change(**fields)))

    def look() -> None:
        clock.advance(3.0)
        seen.append(change().value)

    assert change(value=b"first", ttl=5.0).version == 1
    clock.advance(4.0)
    store._space.mutex = Preempted(store._space.mutex, look)
    assert not change(value=b"second", if_version=1).changed
    assert seen == [None]


class Hooked(str):
    """A name: something else happens before a dictionary uses it for the second time."""

    __slots__ = ("meanwhile", "uses")

    meanwhile: Callable[[], None]
    uses: int

    def __hash__(self) -> int:
        self.uses = getattr(self, "uses", 0) + 1
        if self.uses == 2:
            self.meanwhile()
        return str.__hash__(self)


def test_two_threads_that_make_the_first_clients_of_a_space_share_it() -> None:
    """The first thread has found that there is no such space, and is about to store its own."""
    runtime, made = ManualBlockingRuntime(ManualClock()), list[MemoryStore]()
    thread = Thread(target=lambda: made.append(MemoryStore(runtime, "n", "made twice")), daemon=True)

    def meanwhile() -> None:
        thread.start()
        thread.join(0.3)  # it waits for us

    name = Hooked("made twice")
    name.meanwhile = meanwhile
    made.append(MemoryStore(runtime, "n", name))
    thread.join(10.0)
    one, other = made
    assert one._space is other._space


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_that_is_forked_while_another_thread_makes_a_space_makes_one_of_its_own() -> None:
    with memory._spaces._making.mutex:  # a handler may fork here; the child gets a mutex that nobody holds
        pid = os.fork()
        if pid == 0:
            child = Thread(target=lambda: MemoryStore(ManualBlockingRuntime(ManualClock()), "n", "of a child"))
            child.start()
            child.join(5.0)
            os._exit(int(child.is_alive()))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
