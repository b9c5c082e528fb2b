"""Orders that are shipped one at a time, a report that is queued once, and a beat that may run on every node.

With a Redis at ``redis://localhost:6379``, each in a terminal of its own, and the first two as often as you like::

    celery --app shop worker
    celery --app shop beat -S leasehold.integrations.celery:ElectedScheduler -s /tmp/beat-1
    python shop.py
"""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery

from leasehold.integrations.celery import LockedTask, locked_task

REDIS = os.environ.get("REDIS", "redis://localhost:6379")

app = Celery("shop", broker=f"{REDIS}/0", backend=f"{REDIS}/0")
app.conf.update(
    leasehold_url=f"{REDIS}/1",
    beat_schedule={"every minute": {"task": "shop.report", "schedule": 60.0, "args": ("today",)}},
)


@app.task(base=LockedTask, lock="order:{order_id}", bind=True, countdown=1)
def ship(self: Any, order_id: int) -> int:
    """Ship an order; another message for the same order waits."""
    print(f"shipping {order_id} under token {self.hold.token}")
    time.sleep(0.5)
    return int(self.hold.token)


@locked_task(app, name="report:{day}", unique="until_ended")
def report(day: str) -> str:
    """Write a report; who asks for it meanwhile gets the same one."""
    time.sleep(0.5)
    return f"the report of {day}"


def main() -> None:
    """Send three messages for one order, and ask for a report three times."""
    shipped = [ship.delay(7) for _ in range(3)]
    reports = [report.delay("today") for _ in range(3)]
    tokens = [each.get(timeout=60) for each in shipped]
    print("shipped under the tokens", *sorted(tokens))
    print(len({each.id for each in reports}), "report:", reports[0].get(timeout=60))


if __name__ == "__main__":
    main()
