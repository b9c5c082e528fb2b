"""Tasks under locks, with two real workers of each queue: one at a time, whatever becomes of workers and store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker
from huey import MemoryHuey
from queue_workers import all_that_is_promised, workers_of
from taskiq import InMemoryBroker

from leasehold import Client
from leasehold.integrations import huey as of_huey
from leasehold.integrations import rq as of_rq
from leasehold.integrations import taskiq as of_taskiq
from leasehold.integrations.dramatiq import LockMiddleware


@pytest.mark.parametrize("queue", ["dramatiq", "huey", "rq", "taskiq"])
def test_tasks_with_one_name_run_one_at_a_time_and_end_as_the_queue_does(queue: str, tmp_path: Path) -> None:
    with workers_of(queue, tmp_path) as workers:
        all_that_is_promised(workers)


@pytest.fixture
def locks() -> Iterator[Client]:
    """A client, whose store no other test sees."""
    with Client.from_url("memory:") as client:
        yield client


def _broker(locks: Client) -> StubBroker:
    broker = StubBroker()
    broker.add_middleware(LockMiddleware(locks, delay=0.05))
    return broker


DECLARE: dict[str, Callable[..., Any]] = {
    "dramatiq": lambda locks, function, name, **given: dramatiq.actor(broker=_broker(locks), lock=name, **given)(
        function
    ),
    "huey": lambda locks, function, name, **given: MemoryHuey().task()(
        of_huey.locked_task(locks, name, **given)(function)
    ),
    "rq": lambda locks, function, name, **given: of_rq.locked_job(locks, name, **given)(function),
    "taskiq": lambda locks, function, name, **given: InMemoryBroker().task(
        of_taskiq.locked_task(locks, name, **given)(function)
    ),
}
"""How a task under a lock is declared in each queue."""


@pytest.mark.parametrize("queue", DECLARE)
@pytest.mark.parametrize(
    ("kind", "name", "given"),
    [
        (ValueError, "order:{renamed}", {}),
        (ValueError, "order:{", {}),
        (TypeError, 7, {}),
        (ValueError, "order:{order}", {"on_busy": "drop"}),
        (TypeError, "order:{order}", {"lease": "30s"}),
        (ValueError, "order:{order}", {"wait": -2.0}),
        (TypeError, "order:{order}", {"hold": "missing"}),
    ],
)
def test_a_mistake_in_the_options_of_a_lock_fails_the_declaration(
    queue: str, kind: type[Exception], name: Any, given: dict[str, Any], locks: Client
) -> None:
    def ship(order: int) -> None:
        """It would run without a lock."""

    with pytest.raises(kind):
        DECLARE[queue](locks, ship, name, **given)


def test_a_lock_around_what_is_a_task_already_is_refused(locks: Client) -> None:
    """It would be held while the task is enqueued, and not while it runs."""

    def ship(order: int) -> None:
        """It would run without a lock."""

    with pytest.raises(TypeError, match="below"):
        of_huey.locked_task(locks, "order")(MemoryHuey().task()(ship))
    with pytest.raises(TypeError, match="below"):
        of_taskiq.locked_task(locks, "order")(InMemoryBroker().task(ship))


def test_an_actor_of_a_class_runs_under_the_lock_that_the_arguments_of_perform_name(locks: Client) -> None:
    broker = _broker(locks)
    held = list[str]()

    class Ship(dramatiq.GenericActor):
        class Meta:
            actor = staticmethod(lambda function, **given: dramatiq.actor(function, broker=broker, **given))
            lock = "order:{order}"
            hold = "hold"

        def perform(self, order: int, *, hold: Any) -> None:
            assert hold.held
            held.extend(each.name for each in locks.holds())

    ship: Any = Ship  # an instance, which dramatiq makes of the class
    worker = dramatiq.Worker(broker, worker_timeout=100, worker_threads=1)
    worker.start()
    try:
        ship.send(7)
        broker.join("default", fail_fast=True, timeout=10_000)
    finally:
        worker.stop()
    ship(8)  # a call in the program itself
    assert held == ["order:7", "order:8"]

    def perform(self: Any, renamed: int, *, hold: Any) -> None:
        """It would run without a lock."""

    with pytest.raises(ValueError, match="no argument 'order'"):
        type("Renamed", (dramatiq.GenericActor,), {"Meta": Ship.Meta, "perform": perform})
