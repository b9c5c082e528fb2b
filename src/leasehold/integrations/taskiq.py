"""taskiq: tasks run under a lock that their arguments name.

A decorator below taskiq's own: its middleware's hooks cannot keep a task from running, nor fail one that has run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from leasehold import AcquireTimeout, AsyncClient, Client
from leasehold._validate import Seconds
from leasehold.integrations._common.queues import OnBusy, run_under_lock

F = TypeVar("F", bound=Callable[..., Any])


def locked_task(
    client: AsyncClient | Client,
    name: str,
    *,
    on_busy: OnBusy = "retry",
    lease: Seconds = 30.0,
    wait: Seconds = 0.0,
    hold: str | None = None,
) -> Callable[[F], F]:
    """Return a decorator for a task, below ``@broker.task(retry_on_error=True)``.

    Args:
        client: acquires the locks: an `AsyncClient` for coroutine functions, a `Client` for others.
        name: of the lock, a template over the task's arguments: ``order:{order_id}``.
        on_busy: "retry": a task whose lock is held by another raises `AcquireTimeout`, for one of taskiq's retry
            middlewares; "skip": it ends, with the result None.
        lease: seconds after which the lock of a dead worker is free.
        wait: seconds for which the task waits for the lock before that.
        hold: the keyword-only argument of the task that gets the hold, for its ``token``.
    """
    return run_under_lock(client, name, _busy, on_busy=on_busy, lease=lease, wait=wait, hold=hold)


def _busy(error: AcquireTimeout) -> None:
    raise error
