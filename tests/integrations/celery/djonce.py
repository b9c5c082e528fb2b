"""One-off tasks of django-celery-beat, whose leader dies at each step: run ``python djonce.py``, with DATABASE set.

Each of them is sent once; again when it was switched on again; and again when it was made anew. Leaders follow each
other in one process, each with what it reads from the store and from the database.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from unittest import mock

os.environ.update(BROKER_URL="memory://", STORE_URL="memory:", LEASE="1")

from djclock import app  # it sets Django up, which the models need

# isort: split
from celery.signals import after_task_publish
from django.core.management import call_command
from django_celery_beat.models import ClockedSchedule, IntervalSchedule, PeriodicTask, PeriodicTasks
from django_celery_beat.schedulers import DatabaseScheduler

from leasehold import Client
from leasehold.integrations.celery.runs import RunBook
from leasehold.integrations.celery.sending import Sending

PAST = datetime(2020, 1, 1, tzinfo=UTC)
TICKS = 6
"""So many ticks send what is due, and switch off what was sent."""


class Died(BaseException):
    """The process of a leader ended here."""


def interval(**given: Any) -> dict[str, Any]:
    each, _ = IntervalSchedule.objects.get_or_create(every=1, period="microseconds")
    return {"interval": each, **given}


KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "interval": interval,
    "from a time on": lambda: interval(start_time=PAST),
    "clocked": lambda: {"clocked": ClockedSchedule.objects.create(clocked_time=PAST)},
    "configured": interval,
}


class Leaders:
    """Leaders that follow each other; ``left`` steps before the one that leads now dies, if it does."""

    def __init__(self, client: Client) -> None:
        self._client, self._tokens = client, itertools.count(1)
        self.sent: list[str] = []
        self.left: int | None = None
        self._leadership = SimpleNamespace()
        self.follow()

    def follow(self) -> None:
        """Lead, with nothing in memory; the former leader writes no more."""
        self._leadership.held = False
        self._leadership = SimpleNamespace(held=True, raise_if_lost=lambda: None)
        own = {
            "leadership": self._leadership,
            "book": RunBook(self._client, "beat", next(self._tokens), {}),
        }
        self.scheduler: Any = type("Elected", (Sending, DatabaseScheduler), own)(app=app, lazy=False)
        self.scheduler._last_sync = time.monotonic()  # Celery writes the rows at the first run, and then each 3 minutes

    def step(self) -> None:
        """Die if this was the last step."""
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                self.left = None
                raise Died

    def run(self) -> set[str]:
        """Tick until nothing more is sent; return the ids of the messages."""
        self.sent.clear()
        PeriodicTasks.update_changed()  # what is not due again for long is read again
        for _ in range(2):
            try:
                for number in range(TICKS):
                    self.scheduler.tick()
                    if number == TICKS // 2:
                        PeriodicTasks.update_changed()
                break
            except Died:
                self.follow()
        return {*self.sent}


@contextmanager
def steps(leaders: Leaders) -> Iterator[None]:
    """Make a step of each write to the store, to the database and to the broker."""

    def stepping(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            done = function(*args, **kwargs)
            leaders.step()
            return done

        return call

    def sent(headers: Any = None, **_: Any) -> None:
        leaders.sent.append(headers["id"])

    after_task_publish.connect(sent)
    with (
        mock.patch.object(RunBook, "write", stepping(RunBook.write)),
        mock.patch.object(PeriodicTask, "save", stepping(PeriodicTask.save)),
        mock.patch.object(DatabaseScheduler, "apply_async", stepping(DatabaseScheduler.apply_async)),
    ):
        yield
    after_task_publish.disconnect(sent)


def once(kind: str, dies_after: int | None) -> int:
    """Run one history; return how many steps were left when it ended, -1 if the leader died."""
    task, made = {"task": "djclock.tick", "one_off": True}, KINDS[kind]
    PeriodicTask.objects.all().delete()
    configured = (
        {"once": {**task, "args": ["once", 0], "schedule": timedelta(microseconds=1)}} if kind == "configured" else {}
    )
    app.conf.beat_schedule = configured
    with Client.from_url("memory:", namespace=f"{kind} {dies_after}") as client:
        leaders = Leaders(client)
        with steps(leaders):
            if not configured:
                PeriodicTask.objects.create(name="once", args='["once", 0]', **task, **made())
            leaders.left = dies_after
            where = f"{kind}, dies after {dies_after}"
            assert len(leaders.run()) == 1, f"{where}: {leaders.sent}"
            left, leaders.left = leaders.left, None
            row = PeriodicTask.objects.get(name="once")
            assert not row.enabled, where
            for field, value in made().items():
                setattr(row, field, value)
            row.enabled = True
            row.save()
            assert len(leaders.run()) == 1, f"{where}, and is switched on again: {leaders.sent}"
            PeriodicTask.objects.all().delete()
            PeriodicTask.objects.create(name="once", args='["once", 0]', **task, **made())
            assert len(leaders.run()) == 1, f"{where}, and is made anew: {leaders.sent}"
    return -1 if left is None else left


def main() -> None:
    call_command("migrate", verbosity=0)
    for kind in KINDS:
        once(kind, None)
        died = 0
        while once(kind, died) < 0:
            died += 1
        assert died >= 5, f"{kind}: {died}"
        print(f"{kind}: died after each of {died} steps", file=sys.stderr)


if __name__ == "__main__":
    main()
