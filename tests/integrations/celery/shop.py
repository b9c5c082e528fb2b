"""The app that the tests' workers run: each body writes down when it began and ended, and under which token."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import redis
from celery import Celery, signals

from leasehold.integrations.celery import LockedTask, current_hold, locked_task

app = Celery("shop", broker=os.environ["BROKER_URL"], backend=os.environ["BROKER_URL"])
app.conf.update(
    leasehold_url=os.environ["STORE_URL"],
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=1,
    task_acks_late=bool(os.environ.get("ACKS_LATE")),
    task_reject_on_worker_lost=True,
    result_expires=600,
    task_default_queue=os.environ.get("QUEUE", "celery"),
)
records = redis.Redis.from_url(os.environ["BROKER_URL"])


def record(task: Any, what: str, name: str) -> None:
    said = {"what": what, "name": name, "id": task.request.id, "token": current_hold().token, "pid": os.getpid()}
    records.rpush(f"records:{name}", json.dumps({**said, "at": time.time()}))


@signals.worker_ready.connect
def say_how(**_: Any) -> None:
    from gevent import monkey

    print(f"patched by gevent: {monkey.is_module_patched('threading')}", flush=True)


def work(task: Any, name: str, seconds: float) -> str:
    record(task, "begin", name)
    time.sleep(seconds)
    record(task, "end", name)
    return f"{name} done"


@app.task(base=LockedTask, lock="order:{order}", bind=True, countdown=0.3, lease=2, max_retries=3)
def ship(self: Any, order: str, seconds: float = 0.2) -> str:
    return work(self, order, seconds)


@locked_task(app, name="order:{order}", on_busy="skip", bind=True, lease=2, countdown=0.3)
def ship_or_skip(self: Any, order: str, seconds: float = 0.2) -> str:
    return work(self, order, seconds)


@locked_task(app, name="order:{order}", on_busy="reject", bind=True, acks_late=True, lease=2)
def ship_or_reject(self: Any, order: str, seconds: float = 0.2) -> str:
    return work(self, order, seconds)


@locked_task(app, name="partner:{order}", permits=2, bind=True, lease=2, countdown=0.2)
def call_partner(self: Any, order: str, seconds: float = 0.2) -> str:
    return work(self, order, seconds)


@locked_task(app, name="report:{order}", unique="until_started", unique_for=60, bind=True, lease=2, countdown=0.2)
def report(self: Any, order: str, seconds: float = 0.2) -> str:
    return work(self, order, seconds)


@locked_task(app, name="index:{order}", unique="until_ended", unique_for=60, bind=True, lease=2, countdown=0.2)
def index(self: Any, order: str, seconds: float = 0.2, fail: str = "") -> str:
    done = work(self, order, seconds)
    if fail == "retry" and self.request.retries == 0:
        raise self.retry(countdown=1)
    if fail == "error":
        raise RuntimeError("it failed")
    return done


@app.task(bind=True)
def hand_to_index(self: Any, order: str) -> Any:
    return self.replace(index.si(order, 0))


@locked_task(app, name="loses:{order}", bind=True, lease=1, countdown=0.2, max_retries=2)
def loses(self: Any, order: str, times: int) -> str:
    """Lose the lease at the first runs: the lock is broken."""
    from leasehold.integrations.celery import client_of

    record(self, "begin", order)
    if self.request.retries < times:
        client_of(app).force_release(f"loses:{order}", self.hold.token)
        while self.hold.held:
            time.sleep(0.05)
    record(self, "end", order)
    return f"{order} done after {self.request.retries}"
