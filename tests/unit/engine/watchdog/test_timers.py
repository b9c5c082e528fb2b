"""The timer queue against a plain dict, by random changes; and the timers of leases while the collector runs."""

import gc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasehold import Client
from leasehold._engine.lease import Lease
from leasehold._engine.watchdog.timers import TimerQueue
from leasehold._model import AcquireRequest

changes = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 9), st.integers(0, 20)),
        st.tuples(st.just("remove"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("due"), st.just(0), st.integers(0, 20)),
    ),
    max_size=200,
)


@settings(max_examples=300, deadline=None)
@given(changes)
def test_it_is_a_dict_with_an_earliest(changes: list[tuple[str, int, int]]) -> None:
    timers: TimerQueue[int] = TimerQueue()
    model: dict[int, float] = {}
    for what, item, when in changes:
        if what == "put":
            timers.put(item, when)
            model[item] = when
        elif what == "remove":
            timers.remove(item)
            model.pop(item, None)
        else:
            due = timers.due(when)
            assert len(due) == len(set(due))
            assert set(due) == {one for one, at in model.items() if at <= when}
            assert [model[one] for one in due] == sorted(model[one] for one in due)
            for one in due:
                del model[one]
        assert timers.next() == min(model.values(), default=None)
        assert len(timers) == len(model)
        assert set(timers) == set(model)
        assert all(one in timers for one in model)


def test_moving_an_item_for_ever_does_not_fill_the_heap() -> None:
    timers: TimerQueue[str] = TimerQueue()
    for when in range(10_000):
        timers.put("a", when)
        timers.put("b", -when)
    assert len(timers._heap) < 200


def lease_of(client: Client, name: str) -> Lease:
    return client._core._engine.lease(AcquireRequest(name, client.lock(name)._core._options.terms)).lease


def test_a_ticket_registered_while_the_collector_runs_disturbs_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    # The collector runs finalizers, and so lets other threads run, wherever objects are made.
    with Client.from_url("memory:test-collector") as client:
        timers = client._core._engine.watchdog._timers
        leases = [lease_of(client, f"a{number}") for number in range(100)]
        meanwhile = [lease_of(client, f"b{number}") for number in range(100)]
        came = list[Lease]()

        def another_thread_registers(phase: str, info: dict[str, Any]) -> None:
            if phase == "stop" and len(came) < len(meanwhile):
                came.append(meanwhile[len(came)])
                timers.fresh[came[-1]] = 0.0

        timers.fresh.update(dict.fromkeys(leases, 0.0))
        before = gc.get_threshold()
        gc.callbacks.append(another_thread_registers)
        gc.set_threshold(1, 1, 1)
        try:
            timers.add_fresh()
        finally:
            gc.set_threshold(*before)
            gc.callbacks.remove(another_thread_registers)
        assert came, "the collector ran meanwhile"
        assert set(leases) <= set(timers.watched)
        for lease in (*leases, *meanwhile):
            client._core._engine.watchdog.forget(lease)
