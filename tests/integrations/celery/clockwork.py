"""The app of the tests of beat: ticks on a grid of the wall clock, so that each one is known beforehand.

Each message carries the time when it was sent. A run that was sent twice is two messages with one id.
"""

from __future__ import annotations

import json
import math
import os
import signal
import time
from datetime import UTC, datetime
from typing import Any

import redis
from celery import Celery
from celery.beat import BeatLazyFunc, PersistentScheduler
from celery.schedules import schedstate, schedule

BROKER = os.environ["BROKER_URL"]
EVERY = float(os.environ.get("EVERY", "2"))
ENTRIES = int(os.environ.get("ENTRIES", "3"))


class Grid(schedule):
    """Due at each multiple of ``seconds`` since 1970, as a crontab is at each minute."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.length = seconds

    def __reduce__(self) -> Any:
        return Grid, (self.length,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Grid) and other.length == self.length

    __hash__ = None  # type: ignore[assignment]

    def is_due(self, last_run_at: datetime) -> schedstate:
        now = time.time()
        last = last_run_at.replace(tzinfo=UTC) if last_run_at.tzinfo is None else last_run_at
        behind = math.floor(now / self.length) > math.floor(last.timestamp() / self.length)
        return schedstate(behind, self.length - now % self.length)


app = Celery("clockwork", broker=BROKER)
app.conf.update(
    leasehold_url=os.environ["STORE_URL"],
    beat_leasehold_lease=float(os.environ.get("LEASE", "1.5")),
    beat_max_loop_interval=0.5,
    beat_inner_scheduler=os.environ.get("INNER", "celery.beat:PersistentScheduler"),
    beat_schedule={
        f"entry {number}": {
            "task": "clockwork.tick",
            "schedule": Grid(EVERY),
            "args": (f"entry {number}", BeatLazyFunc(time.time)),
        }
        for number in range(ENTRIES)
    },
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,
)


@app.task(bind=True, name="clockwork.tick")
def tick(self: Any, entry: str, sent: float) -> None:
    with redis.Redis.from_url(BROKER) as server:
        server.rpush("records:ticks", json.dumps({"id": self.request.id, "entry": entry, "sent": sent}))


class DiesAfterSending(PersistentScheduler):
    """Its process is killed once, after the message was sent and before that is written down."""

    def apply_async(self, entry: Any, producer: Any = None, advance: bool = True, **kwargs: Any) -> Any:
        result = super().apply_async(entry, producer=producer, advance=advance, **kwargs)
        _strike(signal.SIGKILL)
        return result


class DiesBeforeSending(PersistentScheduler):
    """Its process is killed once, after the run was claimed and before the message was sent."""

    def apply_async(self, entry: Any, producer: Any = None, advance: bool = True, **kwargs: Any) -> Any:
        _strike(signal.SIGKILL)
        return super().apply_async(entry, producer=producer, advance=advance, **kwargs)


class StopsBeforeSending(PersistentScheduler):
    """Its process is stopped once, after the last check and before the message was sent: the window that remains."""

    def apply_async(self, entry: Any, producer: Any = None, advance: bool = True, **kwargs: Any) -> Any:
        _strike(signal.SIGSTOP)
        return super().apply_async(entry, producer=producer, advance=advance, **kwargs)


def _strike(number: int) -> None:
    """Send a signal to this process, if no process was struck before and one tick is over."""
    with redis.Redis.from_url(BROKER) as server:
        if server.incr("sends") > ENTRIES and server.set("struck", os.getpid(), nx=True):
            os.kill(os.getpid(), number)
