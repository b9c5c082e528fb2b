"""What events carry, and what their log says: for people in the text, for machines in attributes."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Coroutine
from dataclasses import fields
from typing import Any

import pytest

from leasehold import AsyncClient, Client, LeaseLost, StoreUnavailable
from leasehold.events import (
    Acquired,
    Event,
    GaveUp,
    InDoubt,
    Lost,
    Queued,
    Reconnected,
    Released,
    Renewed,
    RenewedLate,
    RequestFailed,
)
from leasehold.observability import log
from leasehold.stores.memory import Memory
from leasehold_lab.faulty_store import Call, Fault, Faulty, Kind
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness
from support.flavors import both

MORE = "host:1:client", 7.5, 1.8e9, "redis://web-1:6379", "default"
DOWN = StoreUnavailable("cannot connect to Redis at web-1:6379: Connection refused")

LEASE = 9.0
DEAD = Fault(Kind.DROP_REQUEST, 60.0)  # as long as the caller's patience


class Plan:
    """A plan that fails on command, from that moment."""

    fault: Fault | None = None

    def __call__(self, call: Call) -> Fault | None:
        return self.fault if call.method in ("try_acquire", "release", "renew") else None


Body = Callable[[SimulatedHarness, AsyncClient, Plan, list[Event]], Coroutine[Any, Any, None]]


def simulate(body: Body) -> None:
    """Run a body with a client on a faulty store, in virtual time."""
    harness, plan, events = SimulatedHarness(), Plan(), list[Event]()

    async def run(_: Harness) -> None:
        await body(harness, harness.client(Faulty(Memory(), plan), observer=events.append), plan, events)

    harness.run(run)


TEXTS: dict[str, Event] = {
    "lock 'job': waits; held by web-3:4176:ab": Queued("job", *MORE, "mutex", "web-3:4176:ab"),
    "lock 'job': waits; held by another holder": Queued("job", *MORE, "mutex", None),
    "semaphore 'job' (token 5): acquired after 0.25 s": Acquired("job", *MORE, "semaphore", 5, 0.25),
    "lock 'job': not acquired after 2 s: timeout": GaveUp("job", *MORE, "mutex", 2.0, "timeout"),
    "lock 'job' (token 5): renewal failed: cannot connect to Redis at web-1:6379: Connection refused; "
    "held for another 1.3 s": InDoubt("job", *MORE, "mutex", 5, 1.34, error=DOWN),
    "lock 'job' (token 5): renewal failed: the store did not confirm it; held for another 1.3 s": InDoubt(
        "job", *MORE, "mutex", 5, 1.34
    ),
    "lock 'job' (token 5): renewed after a failure": Renewed("job", *MORE, "mutex", 5),
    "lock 'job' (token 5): renewed late, when 1.3 s of its lease were left": RenewedLate(
        "job", *MORE, "mutex", 5, 1.34
    ),
    "lock 'job': request (acquire) failed: cannot connect to Redis at web-1:6379: Connection refused": RequestFailed(
        "job", *MORE, "mutex", "acquire", error=DOWN
    ),
    "lock 'job': the store answers again, 2.5 s after a request had failed": Reconnected("job", *MORE, "mutex", 2.5),
    "read-write lock '100%s' (token 5): lost: the lease expired; the last renewal failed: "
    "cannot connect to Redis at web-1:6379: Connection refused": Lost(
        "100%s", *MORE, "rw", 5, "the lease expired", error=DOWN
    ),
    "lock 'job' (token 5): lost: its client was closed": Lost("job", *MORE, "mutex", 5, "its client was closed"),
    "lock 'job' (token 5): released after 3.21 s": Released("job", *MORE, "mutex", 5, 3.2123, True),
    "lock 'job' (token 5): released after 3.21 s, but the store did not confirm; free by the end of its lease at the "
    "latest": Released("job", *MORE, "mutex", 5, 3.2123, False),
}


@pytest.mark.parametrize("text", TEXTS)
def test_each_event_is_logged_as_a_sentence_with_its_fields_beside(caplog: pytest.LogCaptureFixture, text: str) -> None:
    event = TEXTS[text]
    with caplog.at_level(logging.DEBUG, "leasehold"):
        log.Logged(None)(event)
    (record,) = caplog.records
    assert record.getMessage() == text
    assert "job" not in str(record.msg), "records of one kind have one template, by which an error tracker groups them"
    facts = record.leasehold  # type: ignore[attr-defined]
    assert json.loads(json.dumps(facts)) == facts
    assert facts["event"] == type(event).__name__
    assert {*facts} == {"event", *(each.name for each in fields(event))}
    assert facts["error"] == (None if event.error is None else str(event.error))


def test_an_event_names_its_store_namespace_kind_and_time(caplog: pytest.LogCaptureFixture) -> None:
    events = list[Event]()
    with Client.from_url("memory:", namespace="jobs", observer=events.append) as client:
        for lock in (client.lock("a"), client.rw_lock("b").reader(), client.semaphore("c", 2), client.rlock("d")):
            with lock:
                pass
    assert [event.kind for event in events if isinstance(event, Acquired)] == ["mutex", "rw", "semaphore", "mutex"]
    assert {(event.store, event.namespace, event.error) for event in events} == {("memory:", "jobs", None)}
    assert all(1.7e9 < event.time < 1e11 for event in events)


@both
def test_a_store_that_was_opened_without_a_url_is_described(harness: Harness) -> None:
    events = list[Event]()

    async def body(harness: Harness) -> None:
        async with harness.client(Memory("described"), observer=events.append).lock("a"):
            pass

    harness.run(body)
    assert {event.store for event in events} == {"<MemoryStore 'described'>"}


@pytest.mark.parametrize("flavor", [Client, AsyncClient])
def test_the_store_of_an_event_has_no_secret(flavor: type[Client] | type[AsyncClient]) -> None:
    client = flavor.from_url("redis://user:hunter2@web-1:6379/0")
    engine = (client._core if isinstance(client, Client) else client)._engine
    assert engine.origin == ("redis://user:***@web-1:6379/0", "default")


@pytest.mark.parametrize("fault", [Fault(Kind.DROP_REQUEST), Fault(Kind.REFUSE), DEAD], ids=str)
def test_a_hold_that_could_not_be_renewed_is_lost_with_the_reason(
    fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    told, noted = list[LeaseLost](), list[Event]()

    async def body(harness: SimulatedHarness, client: AsyncClient, plan: Plan, events: list[Event]) -> None:
        hold = await client.lock("a", lease=LEASE).acquire()
        assert hold is not None
        hold.on_lost(told.append)
        plan.fault = fault
        await harness.sleep(2 * LEASE)
        with pytest.raises(LeaseLost) as caught:
            hold.raise_if_lost()
        assert isinstance(caught.value.__cause__, StoreUnavailable)
        noted.extend(events)

    with caplog.at_level(logging.WARNING, "leasehold"):
        simulate(body)
    doubt = next(event for event in noted if isinstance(event, InDoubt))
    lost = next(event for event in noted if isinstance(event, Lost))
    assert isinstance(doubt.error, StoreUnavailable)
    assert told[0].__cause__ is lost.error is not None
    assert f"renewal failed: {doubt.error}; held for another " in caplog.text
    assert f"lost: the lease expired; the last renewal failed: {lost.error}" in caplog.text


def test_the_reason_of_a_doubt_is_no_reason_of_a_later_loss() -> None:
    async def body(harness: SimulatedHarness, client: AsyncClient, plan: Plan, events: list[Event]) -> None:
        healed, broken = [await client.lock(name, lease=LEASE).acquire() for name in ("healed", "broken")]
        assert healed is not None
        assert broken is not None
        plan.fault = Fault(Kind.DROP_REQUEST)
        await harness.sleep(LEASE / 2)
        assert {event.name for event in events if isinstance(event, InDoubt)} == {"healed", "broken"}
        plan.fault = None
        assert await harness.client("memory:").force_release("broken", broken.token)
        await harness.sleep(LEASE)
        assert [(event.name, event.error) for event in events if isinstance(event, Lost)] == [("broken", None)]
        assert healed._lease.failure is None
        with pytest.raises(LeaseLost) as caught:
            broken.raise_if_lost()
        assert caught.value.__cause__ is None
        await healed.release()

    simulate(body)


def test_the_reason_keeps_no_lease_alive() -> None:
    """Its traceback would refer to the frame that renewed, and that frame to the leases."""
    gone = list[object]()

    async def body(harness: SimulatedHarness, client: AsyncClient, plan: Plan, events: list[Event]) -> None:
        hold = await client.lock("a", lease=LEASE).acquire()
        assert hold is not None
        plan.fault = Fault(Kind.REFUSE)
        await harness.sleep(LEASE / 2)
        error = hold._lease.failure
        assert error is not None
        gone.append(error.__traceback__)
        plan.fault = None
        await hold.release()

    simulate(body)
    assert gone == [None]


@both
def test_no_event_is_made_where_nobody_observes(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[object]()
    monkeypatch.setattr(Event, "__init__", lambda *args, **facts: made.append(args))
    for kind in (Acquired, Released, Queued, GaveUp):
        monkeypatch.setattr(kind, "__init__", lambda *args, **facts: made.append(args))

    async def body(harness: Harness) -> None:
        client = harness.client()
        async with client.lock("quiet"):
            assert await client.lock("quiet").acquire(timeout=0.01) is None

    assert not logging.getLogger("leasehold").isEnabledFor(logging.DEBUG)
    harness.run(body)
    assert made == []
