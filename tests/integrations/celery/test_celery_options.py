"""What is refused where a task is made, and the parts that need no worker."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, chain
from celery.beat import PersistentScheduler, Scheduler

from leasehold import Client, Conflict, LeaseLost, StoreUnavailable
from leasehold.events import Acquired, Event
from leasehold.integrations.celery import ElectedScheduler, LockedTask, beat, current_hold, locked_task, runs
from leasehold.integrations.celery.beat import inner_class
from leasehold.integrations.celery.clients import client_of, close_clients
from leasehold.integrations.celery.runs import Run, RunBook
from leasehold.integrations.celery.sending import NotSent, later_signals
from support.patience import until


@pytest.fixture
def app() -> Iterator[Celery]:
    made = Celery("options", broker="memory://", set_as_current=False)
    made.conf.update(leasehold_url="memory:", leasehold_namespace=str(uuid.uuid4()))
    yield made
    close_clients()
    made.close()


@pytest.fixture
def client() -> Iterator[Client]:
    with Client.from_url("memory:", namespace=str(uuid.uuid4())) as made:
        yield made


def ship(order_id: int, place: str = "") -> str:
    return f"{order_id} under {current_hold().token}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "order:{order}"}, "no argument 'order'"),
        ({"name": "order:{order_id}{place}"}, "need a separator"),
        ({"name": "order:{order_id}", "on_busy": "wait"}, "on_busy must be one of retry, skip, reject"),
        ({"name": "order:{order_id}", "unique": "always"}, "unique must be one of until_started, until_ended"),
        ({"name": "order:{order_id}", "permits": 0}, "permits must be from 1"),
        ({"name": "order:{order_id}", "lease": 0.001}, "lease"),
        ({"name": "order:{order_id}", "wait": -1}, "wait"),
        ({"name": "order:{order_id}", "countdown": 0}, "countdown"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_mistake_is_refused_when_the_task_is_decorated(app: Celery, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        locked_task(app, **options)(ship)


def test_reject_needs_acks_late(app: Celery) -> None:
    locked_task(app, name="x", on_busy="reject")(ship)
    with pytest.raises(ValueError, match="needs acks_late=True"):
        app.finalize()


def test_the_base_must_be_a_locked_task(app: Celery) -> None:
    with pytest.raises(TypeError, match="base must be a LockedTask"):
        locked_task(app, name="x", base=app.Task)


@pytest.mark.parametrize("name", ["order:{order_id}", lambda order_id, place="": f"order:{order_id}"])
def test_a_function_or_a_template_names_the_lock(app: Celery, name: Any) -> None:
    task = locked_task(app, name=name)(ship)
    with client_of(app).lock("order:7"):
        with pytest.raises(TimeoutError, match="order:7"):
            task(7)
        assert task(8).startswith("8 under ")
    assert task(7).startswith("7 under ")


def test_a_task_may_be_a_class_and_bound(app: Celery) -> None:
    class Ship(LockedTask):
        name = "ship"
        lock = "order:{order_id}"

        def run(self, order_id: int) -> int:
            return self.hold.token

    task = app.register_task(Ship())
    assert isinstance(task(7), int)

    @app.task(base=LockedTask, lock="order:{order_id}", bind=True)
    def bound(self: Any, order_id: int) -> int:
        return self.hold.token

    assert isinstance(bound(order_id=7), int)


def test_no_hold_outside_of_a_task() -> None:
    with pytest.raises(RuntimeError, match="no locked task runs here"):
        current_hold()


def test_parts_of_a_chain_are_always_sent(app: Celery) -> None:
    task = locked_task(app, name="order:{order_id}", unique="until_ended")(ship)
    first = task.apply_async((7,))
    assert task.apply_async((7,)).id == first.id
    assert chain(task.si(7), task.si(7)).apply_async().parent.id != first.id


@pytest.mark.parametrize("given", ["celery.beat:PersistentScheduler", PersistentScheduler])
def test_an_inner_scheduler_is_a_class_or_a_path(given: Any) -> None:
    assert inner_class(given) is PersistentScheduler


@pytest.mark.parametrize("given", ["celery:Celery", ElectedScheduler, "leasehold.integrations.celery:ElectedScheduler"])
def test_another_inner_scheduler_is_refused(given: Any) -> None:
    with pytest.raises(TypeError, match="beat_inner_scheduler must be"):
        inner_class(given)


def test_wrong_settings_are_found_at_the_start(app: Celery) -> None:
    app.conf.beat_leasehold_url = "nothing://x"
    with pytest.raises(ValueError, match="nothing"):
        ElectedScheduler(app)
    assert isinstance(ElectedScheduler(app, lazy=True), Scheduler), "what only shows itself does not look"


class FailsOnce(Scheduler):  # type: ignore[misc]
    """Cannot send in its first tick."""

    failed = False

    def tick(self, *args: Any, **kwargs: Any) -> float:
        if not self.failed:
            self.failed = True
            raise NotSent("one failure")
        return 1.0


def test_an_outage_while_a_node_stands_by_does_not_count_when_it_leads(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(beat, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(beat, "STAND_BY", 0.01)
    app.conf.beat_inner_scheduler = FailsOnce
    scheduler = ElectedScheduler(app)

    def unavailable() -> Any:
        raise StoreUnavailable("an outage")

    election = scheduler._election().campaign(blocking=False)
    assert election is not None
    with monkeypatch.context() as outage:
        outage.setattr(scheduler, "_election", unavailable)
        scheduler.tick()
    now += 1000
    scheduler.tick()
    election.release()
    now += 1000
    scheduler.tick()
    assert scheduler.schedule == {}
    leader = scheduler._election().leader()
    assert leader is not None, "it still leads"
    now += scheduler._lease / 2
    assert scheduler.tick() > 0
    scheduler.close()


EVENTS: list[Event] = []


@dataclass
class Observer:
    """A callable without a hash."""

    def __call__(self, event: Event) -> None:
        EVENTS.append(event)


@pytest.mark.parametrize("given", [EVENTS.append, Observer(), f"{__name__}.EVENTS", f"{__name__}:observe"])
def test_an_observer_gets_the_events_of_tasks_and_of_beat(app: Celery, given: Any) -> None:
    EVENTS.clear()
    app.conf.leasehold_observer = given
    if given == f"{__name__}.EVENTS":
        with pytest.raises(TypeError, match="leasehold_observer must be a function"):
            client_of(app)
        return
    locked_task(app, name="order:{order_id}")(ship)(7)
    election = ElectedScheduler(app)._election().campaign(blocking=False)
    assert election is not None
    election.release()
    names = [event.name for event in EVENTS if isinstance(event, Acquired)]
    assert names == ["order:7", f"election/celery-beat/{app.main}"]


def observe(event: Event) -> None:
    EVENTS.append(event)


class Configuration:
    """Celery looks up each value anew, so it gets another bound method each time."""

    broker_url = leasehold_url = "memory:"

    @classmethod
    def leasehold_observer(cls, event: Event) -> None:
        EVENTS.append(event)


def test_an_observer_that_is_a_method_of_the_configuration_makes_one_client(app: Celery) -> None:
    app.config_from_object(Configuration)
    assert client_of(app) is client_of(app)


@dataclass(unsafe_hash=True)
class Counter:
    count: int = 0

    def __call__(self, event: Event) -> None:
        self.count += 1


def test_an_observer_whose_hash_changes_has_one_client(app: Celery) -> None:
    app.conf.leasehold_observer = Counter()
    client = client_of(app)
    client.lock("x").acquire().release()  # two events
    assert client_of(app) is client
    close_clients()
    assert client_of(app) is not client


NOW = datetime.now(UTC)
RUN = Run(NOW, 3, "an id", sent=False)


def test_the_next_leader_knows_the_run_that_is_not_confirmed(client: Client) -> None:
    RunBook(client, "book", 1, {}).write("entry", RUN)
    assert RunBook(client, "book", 2, {}).last("entry") == RUN
    assert RunBook(client, "book", 2, {}).last("another") is None


def test_a_former_leader_cannot_claim(client: Client) -> None:
    former, later = RunBook(client, "book", 1, {}), RunBook(client, "book", 2, {})
    former.write("entry", RUN)
    later.last("entry")
    later.write("entry", Run(NOW, 4, "another", sent=True))
    with pytest.raises((Conflict, LeaseLost)):
        former.write("entry", Run(NOW, 4, "late", sent=False))
    with pytest.raises(LeaseLost):
        former.write("entry", Run(NOW, 4, "late", sent=False))
    seen = RunBook(client, "book", 3, {}).last("entry")
    assert seen is not None
    assert seen.task_id == "another"


def test_a_store_that_has_lost_its_data_is_told_by_who_knows(client: Client) -> None:
    known: dict[str, Run] = {}
    RunBook(client, "book", 1, known).write("entry", RUN)
    assert RunBook(client, "emptied", 2, known).last("entry") == RUN
    later = Run(NOW + timedelta(seconds=5), 4, "later", sent=True)
    RunBook(client, "book", 2, {}).write("entry", later)
    assert RunBook(client, "book", 3, known).last("entry") == later, "the store knows more"


def test_an_entry_that_left_the_schedule_is_forgotten_soon(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "GONE_TTL", 0.01)
    known: dict[str, Run] = {}
    book = RunBook(client, "book", 1, known)
    for name in ("entry", "stays"):
        book.write(name, RUN)
    book.keep_only({"stays"})
    assert known == {"stays": RUN}
    book.settle()
    until(lambda: client.versioned("book/entry").get().version == 0, within=20)
    assert RunBook(client, "book", 2, {}).last("stays") == RUN
    assert book._versions.keys() == {"stays"}
    assert not book._gone


def test_an_entry_that_is_back_in_the_schedule_is_kept_for_long(client: Client) -> None:
    book = RunBook(client, "book", 1, {})
    book.write("entry", RUN)
    cell = client.versioned("book/entry")
    for gone in (True, False):  # settled, and not yet
        book.keep_only(set())
        if gone:
            book.settle()
            assert runs.GONE in (cell.get().value or {})
        book.keep_only({"entry"})
        assert book.last("entry") == RUN
        book.settle()
        assert cell.get().value == RUN.as_value()


def test_a_run_whose_entry_has_left_is_kept_as_it_was_sent(client: Client) -> None:
    book = RunBook(client, "book", 1, {})
    book.write("entry", RUN)
    book._unconfirmed["entry"] = replace(RUN, sent=True)
    book.keep_only(set())
    book.settle()
    assert RunBook(client, "book", 2, {}).last("entry") == replace(RUN, sent=True)


def test_a_leader_forgets_the_entries_that_leave_its_schedule(app: Celery) -> None:
    entry = {"task": "ship", "schedule": timedelta(days=1)}
    app.conf.update(beat_inner_scheduler=Scheduler, beat_schedule={"once": entry, "daily": entry})
    scheduler = ElectedScheduler(app)
    try:
        scheduler.tick()
        assert {"once", "daily"} <= scheduler._known.keys()
        del scheduler.schedule["once"]
        scheduler.tick()
        scheduler.tick()
        assert scheduler._known.keys() == scheduler.schedule.keys()
        election = f"celery-beat/{app.main}"
        values = [client_of(app).versioned(f"{election}/{name}").get().value or {} for name in ("once", "daily")]
        assert [runs.GONE in value for value in values] == [True, False]
    finally:
        scheduler.close()


def test_long_names_of_entries_are_kept(client: Client) -> None:
    RunBook(client, "book", 1, {}).write("é" * 400, RUN)
    assert RunBook(client, "book", 2, {}).last("é" * 400) == RUN


def test_a_signal_waits_for_the_end_of_a_tick_and_the_second_does_not() -> None:
    came: list[str] = []
    before = signal.signal(signal.SIGTERM, lambda *_: came.append("handler"))
    try:
        with later_signals():
            os.kill(os.getpid(), signal.SIGTERM)
            came.append("end of tick")
        assert came == ["end of tick", "handler"]
        with later_signals():
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
            came.append("end of tick")
        assert came[2:4] == ["handler", "end of tick"]
    finally:
        signal.signal(signal.SIGTERM, before)
