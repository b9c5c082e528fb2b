"""One-off tasks of django-celery-beat, with trouble after each step: run ``python djonce.py``, with DATABASE set.

A leader dies, it loses its lead but goes on for a tick, or the database refuses some writes, or all until the leader
dies. Each task is sent with one id; with another one when it was switched on again; and when it was made anew. Leaders
follow each other in one process, each with what it reads from the store and from the database.
"""

from __future__ import annotations

import itertools
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from unittest import mock

os.environ.update(BROKER_URL="memory://", STORE_URL="memory:", LEASE="1")

from djclock import app  # it sets Django up, which the models need

# isort: split
from celery.signals import after_task_publish
from django.core.management import call_command
from django.db import OperationalError
from django_celery_beat.models import ClockedSchedule, IntervalSchedule, PeriodicTask, PeriodicTasks
from django_celery_beat.schedulers import DatabaseScheduler

from leasehold import Client
from leasehold.integrations.celery.runs import RunBook
from leasehold.integrations.celery.sending import Sending

PAST = datetime(2020, 1, 1, tzinfo=UTC)
TICKS = 8
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


@dataclass(frozen=True)
class Trouble:
    """What happens after a step: the database refuses so many ``writes``, and the leader loses its ``lead`` or dies."""

    what: str
    writes: float = 0
    lead: bool = False
    dies: bool = False

    @property
    def doubles(self) -> bool:
        """Return whether a message may be sent twice, by two leaders."""
        return self.lead or self.dies


TROUBLES = (
    Trouble("it dies", dies=True),
    Trouble("it loses its lead", lead=True),
    *(Trouble(f"{writes} writes are refused", writes) for writes in (1, 2)),
    Trouble("writes are refused until it dies", math.inf, lead=True),
)


class Leaders:
    """Leaders that follow each other; ``left`` steps before there is trouble, if there is."""

    def __init__(self, client: Client, trouble: Trouble) -> None:
        self._client, self._tokens, self._trouble = client, itertools.count(1), trouble
        self.refused = 0.0
        self.sent: list[str] = []
        self.left: int | None = None
        self._leadership = SimpleNamespace()
        self.follow()

    def follow(self) -> None:
        """Lead, with nothing in memory; the former leader writes no more."""
        self._leadership.held = False
        self.refused = 0.0
        self._leadership = SimpleNamespace(held=True, raise_if_lost=self._raise_if_lost)
        own = {
            "leadership": self._leadership,
            "book": RunBook(self._client, "beat", next(self._tokens), {}),
        }
        self.scheduler: Any = type("Elected", (Sending, DatabaseScheduler), own)(app=app, lazy=False)
        self.scheduler._last_sync = time.monotonic()  # Celery writes the rows at the first run, and then each 3 minutes

    def _raise_if_lost(self) -> None:
        if not self._leadership.held:
            raise Died

    def step(self) -> None:
        """Have trouble if this was the last step before it."""
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                self.left = None
                self.refused = self._trouble.writes
                self._leadership.held = not self._trouble.lead
                if self._trouble.dies:
                    raise Died

    def refuse(self) -> None:
        """Refuse a write to the database, if there is such trouble."""
        if self.refused > 0:
            self.refused -= 1
            raise OperationalError("the database is restarting")

    def run(self) -> set[str]:
        """Tick until nothing more is sent; return the ids of the messages. A leader without its lead is followed."""
        self.sent.clear()
        PeriodicTasks.update_changed()  # what is not due again for long is read again
        for _ in range(2):
            try:
                for number in range(TICKS):
                    self.scheduler.tick()
                    self._raise_if_lost()
                    if number % 2:
                        PeriodicTasks.update_changed()
                break
            except Died:
                self.follow()
        return {*self.sent}


@contextmanager
def steps(leaders: Leaders) -> Iterator[None]:
    """Make a step of each write to the store, to the database and to the broker."""

    def stepping(function: Any, before: Callable[[], None] = lambda: None) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            before()
            done = function(*args, **kwargs)
            leaders.step()
            return done

        return call

    def sent(headers: Any = None, **_: Any) -> None:
        leaders.sent.append(headers["id"])

    after_task_publish.connect(sent)
    with (
        mock.patch.object(RunBook, "write", stepping(RunBook.write)),
        mock.patch.object(PeriodicTask, "save", stepping(PeriodicTask.save, leaders.refuse)),
        mock.patch.object(DatabaseScheduler, "apply_async", stepping(DatabaseScheduler.apply_async)),
    ):
        yield
    after_task_publish.disconnect(sent)


def once(kind: str, trouble: Trouble, after: int | None) -> int:
    """Run one history, with trouble after some steps; return how many were left when it ended, -1 if there was any."""
    task, made = {"task": "djclock.tick", "one_off": True}, KINDS[kind]
    PeriodicTask.objects.all().delete()
    configured = (
        {"once": {**task, "args": ["once", 0], "schedule": timedelta(microseconds=1)}} if kind == "configured" else {}
    )
    app.conf.beat_schedule = configured
    with Client.from_url("memory:", namespace=f"{kind} {trouble.what} {after}") as client:
        leaders = Leaders(client, trouble)
        with steps(leaders):
            if not configured:
                PeriodicTask.objects.create(name="once", args='["once", 0]', **task, **made())
            leaders.left = after
            where = f"{kind}, {trouble.what} after {after}"
            assert len(leaders.run()) == 1, f"{where}: {leaders.sent}"
            assert trouble.doubles or len(leaders.sent) == 1, f"{where}: {leaders.sent}"
            left, leaders.left, leaders.refused = leaders.left, None, 0
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
    for kind, trouble in itertools.product(KINDS, TROUBLES):
        if kind != "interval" and not trouble.dies:
            continue
        once(kind, trouble, None)
        after = 0
        while once(kind, trouble, after) < 0:
            after += 1
        assert after >= 5, f"{kind}: {after}"
        print(f"{kind}: {trouble.what} after each of {after} steps", file=sys.stderr)


if __name__ == "__main__":
    main()
