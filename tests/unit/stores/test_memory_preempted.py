"""The store in memory, and a thread that is preempted between its reading of the clock and its turn at the mutex."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from leasehold._model import Change, Granted, LeaseTerms, LockMode, Owner, RenewalResult, Ticket, Wait
from leasehold._runtimes.base import run_sync
from leasehold._runtimes.manual import ManualBlockingRuntime, ManualClock
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
