"""huey: tasks run under a lock that their arguments name.

A decorator below huey's own: huey's hooks before and after a task can neither fail it nor postpone it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from huey.exceptions import RetryTask  # pyright: ignore[reportMissingTypeStubs]

from leasehold import AcquireTimeout, Client
from leasehold._validate import Seconds, at_least_zero, seconds
from leasehold.integrations._common.queues import OnBusy, run_under_lock

F = TypeVar("F", bound=Callable[..., object])


def locked_task(
    client: Client,
    name: str,
    *,
    on_busy: OnBusy = "retry",
    delay: Seconds = 5.0,
    lease: Seconds = 30.0,
    wait: Seconds = 0.0,
    hold: str | None = None,
) -> Callable[[F], F]:
    """Return a decorator for a task, below ``@huey.task()``.

    Args:
        client: acquires the locks.
        name: of the lock, a template over the task's arguments: ``order:{order_id}``.
        on_busy: "retry": a task whose lock is held by another comes again, however often; "skip": it ends.
        delay: seconds after which it comes again.
        lease: seconds after which the lock of a dead worker is free.
        wait: seconds for which a worker waits for the lock before that.
        hold: the keyword-only argument of the task that gets the hold, for its ``token``.
    """
    at_least_zero(delay, "delay")

    def busy(error: AcquireTimeout) -> None:
        raise RetryTask(str(error), delay=seconds(delay, "delay"))

    return run_under_lock(client, name, busy, on_busy=on_busy, lease=lease, wait=wait, hold=hold)
