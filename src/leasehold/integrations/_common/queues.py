"""What the integrations of task queues share: a task that runs under the lock that its arguments name.

Each of them is a decorator below the queue's own, so that a lost lease, a busy lock and a store that does not answer
end as the queue's own errors end. What differs is what a busy task does: each file passes that as ``busy``.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal, TypeVar

from leasehold import AcquireTimeout, AsyncClient, Client
from leasehold._validate import Seconds
from leasehold.integrations._common.names import NameTemplate
from leasehold.primitives.bases import function_name
from leasehold.primitives.calls.synchronized import CallName

LOG = logging.getLogger("leasehold.integrations")

OnBusy = Literal["retry", "skip"]
"""What happens to a task whose lock is busy: it is retried later, or it ends and counts as done."""

F = TypeVar("F", bound=Callable[..., Any])

TASKS = ("task_class", "kiq")
"""Attributes of what the decorators of huey and taskiq return."""

Busy = Callable[[AcquireTimeout], Any]
"""Called if the lock is held by another; raises or returns what makes the queue try again."""


def run_under_lock(
    client: Client | AsyncClient,
    name: str,
    busy: Busy,
    *,
    on_busy: OnBusy,
    lease: Seconds,
    wait: Seconds,
    hold: str | None,
    without: Iterable[str] = (),
) -> Callable[[F], F]:
    """Return a decorator that runs each call under the lock ``name``.

    Args:
        client: an `AsyncClient` for coroutine functions, a `Client` for all others.
        name: a template over the task's arguments.
        busy: makes the queue retry the task.
        on_busy: "retry" or "skip".
        lease: seconds after which the lock of a dead worker is free.
        wait: seconds that a worker waits for the lock, at most, before the task counts as busy.
        hold: the keyword-only argument of the task that gets the hold.
        without: arguments that the queue adds in front.

    Raises:
        ValueError, TypeError: an option is out of its bounds; or, of the decorator, it does not fit the function.
    """
    if on_busy not in ("retry", "skip"):
        raise ValueError(f"on_busy must be 'retry' or 'skip', not {on_busy!r}")
    template, answer = NameTemplate(name), busy if on_busy == "retry" else _skip
    lock = functools.partial(client.lock, lease=lease, timeout=wait)
    lock("checked")  # the options, before any task comes

    def decorate(function: F) -> F:
        _check(client, function)
        left_out = [*without] if hold is None else [*without, hold]
        naming = CallName(template.for_function(function, without=left_out), function, hold)
        make = _on_loop if isinstance(client, AsyncClient) else _in_thread
        return make(function, naming, lock, answer, len([*without]))  # type: ignore[return-value]

    return decorate


def _in_thread(function: Callable[..., Any], naming: CallName, lock: Any, busy: Busy, front: int) -> Callable[..., Any]:
    @functools.wraps(function)
    def task(*args: Any, **kwargs: Any) -> Any:
        naming.refuse_hold(kwargs)
        began = False
        try:
            with lock(naming.of(args[front:], kwargs)) as hold:
                began = True
                naming.put_hold(kwargs, hold)
                return function(*args, **kwargs)
        except AcquireTimeout as error:
            if began:  # the timeout of another lock, inside the task
                raise
            return busy(error)

    return task


def _on_loop(
    function: Callable[..., Awaitable[Any]], naming: CallName, lock: Any, busy: Busy, front: int
) -> Callable[..., Any]:
    @functools.wraps(function)
    async def task(*args: Any, **kwargs: Any) -> Any:
        naming.refuse_hold(kwargs)
        began = False
        try:
            async with lock(naming.of(args[front:], kwargs)) as hold:
                began = True
                naming.put_hold(kwargs, hold)
                return await function(*args, **kwargs)
        except AcquireTimeout as error:
            if began:  # the timeout of another lock, inside the task
                raise
            return busy(error)

    return task


def _skip(error: AcquireTimeout) -> None:
    LOG.info("skipped: %s", error)


def _check(client: Client | AsyncClient, function: Callable[..., Any]) -> None:
    if any(hasattr(function, each) for each in TASKS):  # a lock around it is free when a worker runs the task
        raise TypeError(f"{function_name(function)} is a task already; write the lock below the queue's decorator")
    if inspect.iscoroutinefunction(function) is not isinstance(client, AsyncClient):
        other = "AsyncClient" if isinstance(client, Client) else "Client"
        raise TypeError(f"{function_name(function)} needs an {other}; the client is a {type(client).__name__}")
