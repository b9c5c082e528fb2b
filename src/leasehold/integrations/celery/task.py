"""A task under a lock: `LockedTask`, `locked_task` and `current_hold`.

Theory of operation
-------------------
A delivered task acquires the lock that its arguments name, runs its body, and releases.

* *Busy*: another task has the lock. ``on_busy`` decides: the message is sent again (``retry``), ends without a run
  (``skip``), or is rejected (``reject``). Sending it again does not count as one of the task's ``max_retries``.
* *Ourselves*: a message may be delivered twice (``visibility_timeout``, a worker that is cut off from the broker). Then
  the second delivery finds the first one, by the id in the ``meta`` of the hold. It is always sent again: if it were
  dropped, and the first died, the work would not be done. Where ``permits`` let several in, a delivery that got a
  permit while an older one of its own id has one gives it back.
* *The store does not answer*: the body does not run, and the message is sent again.
* *The lease is lost* while the body runs: the message is sent again, and this counts as one of ``max_retries``.
"""

# pyright: basic
# Celery has no types: each of its names is unknown to a strict check.

from __future__ import annotations

import random
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from celery import Task, shared_task
from celery.exceptions import Reject, Retry
from celery.utils import uuid

from leasehold import AcquireTimeout, Client, Hold, LeaseLost, StoreUnavailable
from leasehold._inspection import Contender
from leasehold._runtimes.log import Log
from leasehold.integrations.celery.clients import client_of
from leasehold.integrations.celery.options import Naming, OnBusy, TaskLock, Unique
from leasehold.integrations.celery.unique import QueuedMark

log = Log("leasehold.celery")

_hold: ContextVar[Hold] = ContextVar("leasehold.celery.hold")
"""A thread, and a greenlet of gevent, has its own."""

LOOKS = 3
"""How often a task tries a lock that was busy, but has no holder when the task looks for one."""


def current_hold() -> Hold:
    """Return the hold under which the calling task runs, for its ``token`` and ``raise_if_lost()``.

    Raises:
        RuntimeError: no locked task runs in this thread or greenlet.
    """
    try:
        return _hold.get()
    except LookupError:
        raise RuntimeError("no locked task runs here; current_hold() is for the body of a LockedTask") from None


class LockedTask(Task):  # type: ignore[misc]
    """A task that runs under a lock: ``@app.task(base=LockedTask, lock="order:{order_id}")``.

    Attributes:
        lock: a format string over the task's arguments, or a function of them that returns the name.
        permits: at most so many run at once; None is one, alone.
        on_busy: what happens to a message whose lock is busy: ``retry``, ``skip`` or ``reject`` (needs ``acks_late``).
        wait: seconds that the worker waits for the lock before the task counts as busy.
        countdown: seconds until a message that was sent again runs, about: a quarter more or less.
        lease: seconds for which the store keeps the lock without a renewal, so also after a crash.
        unique: ``until_started`` or ``until_ended``: until then a second `apply_async` of the same name is dropped, and
            returns the result of the first. None queues all.
        unique_for: seconds for which a queued message drops others at most: longer than it may wait and run.
    """

    lock: Naming | None = None
    permits: int | None = None
    on_busy: OnBusy = "retry"
    wait: float = 0.0
    countdown: float = 5.0
    lease: float = 30.0
    unique: Unique | None = None
    unique_for: float = 3600.0

    _spec: TaskLock | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._spec = TaskLock.of(cls)

    @classmethod
    def bind(cls, app: Any) -> Any:
        """Bind the class to an app, as Celery does, and check what depends on the app's settings."""
        bound = super().bind(app)
        if cls._spec is not None and cls.on_busy == "reject" and not cls.acks_late:
            raise ValueError(
                f"on_busy='reject' of {cls.name} needs acks_late=True: without it the message is acknowledged before "
                "the task runs, and can no longer be rejected"
            )
        return bound

    @property
    def hold(self) -> Hold:
        """The hold under which the calling task runs, as `current_hold`."""
        return current_hold()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run under the lock, as a worker calls it or as a function; a function that is busy raises AcquireTimeout."""
        request = self.request
        if request.called_directly or getattr(request, "leasehold_runs", False):  # its body calls the task itself
            with self._waiting(client_of(self.app), args, kwargs, "") as hold:
                return self._run(super().__call__, hold, args, kwargs)
        request.leasehold_runs = True
        mark = self._mark(args, kwargs)
        try:
            returned = self._delivered(mark, args, kwargs)
        except Exception as error:
            if mark is not None and not isinstance(error, Retry) and not getattr(error, "requeue", False):
                mark.free(request.id)
            raise
        if mark is not None:
            mark.free(request.id)
        return returned

    def apply_async(self, args: Any = None, kwargs: Any = None, task_id: str | None = None, **options: Any) -> Any:
        """Send the task, as Celery does. A unique task that is queued already is not sent: its result is returned.

        Parts of a chain, a group or a chord are always sent: the rest waits for each of them. So is what replaces a
        task: its result is that of the task.

        Raises:
            StoreUnavailable: it is unknown whether it is queued; nothing was sent.
        """

        def send(task_id: str | None) -> Any:
            return super(LockedTask, self).apply_async(args, kwargs, task_id=task_id, **options)

        eager = self.app.conf.task_always_eager
        mark = None if eager or _in_canvas(options) else self._mark(tuple(args or ()), dict(kwargs or {}))
        if mark is None:
            return send(task_id)
        if task_id is not None and task_id == self.request.id:  # a retry of the task that runs
            mark.keep(task_id)
            return send(task_id)
        task_id = task_id or uuid()
        if (first := mark.claim(task_id)) is not None:
            log.info("%s is queued already, as %s", self.name, first)
            return self.AsyncResult(first)
        try:
            result = send(task_id)
        except BaseException:
            mark.free(task_id)
            raise
        mark.confirm(task_id)
        return result

    def _delivered(self, mark: QueuedMark | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            hold = self._acquired(args, kwargs)
        except (StoreUnavailable, LeaseLost) as error:  # lost: it was granted too late to be of use
            if getattr(error, "lasting", False):  # as a missing right: a repetition cannot help
                raise
            raise self._again(error) from error
        if hold is None:
            return None
        try:
            with hold:
                if mark is not None:
                    (mark.free if self.unique == "until_started" else mark.keep)(self.request.id)
                return self._run(self.run, hold, args, kwargs)
        except LeaseLost as error:
            if not hold.lost:  # it is about a lock that the body uses
                raise
            raise self._again(error, count=1) from error

    def _run(self, body: Callable[..., Any], hold: Hold, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        before = _hold.set(hold)
        try:
            return body(*args, **kwargs)
        finally:
            _hold.reset(before)

    def _acquired(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hold | None:
        """Return the hold; None if the message ends here, without a run."""
        client, task_id = client_of(self.app), _short(self.request.id)
        lock = self._waiting(client, args, kwargs, task_id)
        for _ in range(LOOKS):
            hold: Hold | None = lock.acquire()
            if hold is not None:
                if self.permits is None or not self._runs_twice(client, lock.name, hold, task_id):
                    return hold
                hold.release()
            elif self.on_busy == "retry":
                break
            holders = _holders(client, lock.name)
            if any(_id_of(holder) == task_id for holder in holders):
                raise self._again(
                    AcquireTimeout(f"could not acquire {lock.name!r}: its own message runs", name=lock.name)
                )
            if holders and hold is None:
                self._refuse(lock.name, holders[0])
                return None
        raise self._again(AcquireTimeout(f"could not acquire {lock.name!r} within {self.wait} s", name=lock.name))

    def _refuse(self, name: str, holder: Contender) -> None:
        if self.on_busy == "reject":
            if self.request.is_eager:  # there is no message to reject
                raise AcquireTimeout(f"could not acquire {name!r}: held by {holder.owner}", name=name)
            raise Reject(f"{name!r} is held by {holder.owner}", requeue=False)
        log.info("%s[%s] skipped: %r is held by %s", self.name, self.request.id, name, holder.owner)

    def _runs_twice(self, client: Client, name: str, hold: Hold, task_id: str) -> bool:
        """Return whether an older delivery of the same message holds another permit."""
        try:
            holders = _holders(client, name)
        except BaseException:
            hold.release()
            raise
        return any(_id_of(other) == task_id and (other.token or 0) < hold.token for other in holders)

    def _waiting(self, client: Client, args: tuple[Any, ...], kwargs: dict[str, Any], task_id: str) -> Any:
        """Return the lock of these arguments."""
        assert self._spec is not None, f"{self.name} has no lock; write lock='…' where it is made"
        name, meta = self._spec.naming.of(args, kwargs), {"task": _short(self.name), "id": task_id}
        if self.permits is not None:
            return client.semaphore(name, self.permits, lease=self.lease, timeout=self.wait, meta=meta)
        return client.lock(name, lease=self.lease, timeout=self.wait, meta=meta)

    def _mark(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> QueuedMark | None:
        if self.unique is None or self._spec is None:
            return None
        name = f"celery/{self.name}/{self._spec.naming.of(args, kwargs)}"
        return QueuedMark(client_of(self.app), name, self.unique_for)

    def _again(self, why: Exception, count: int = 0) -> Retry:
        """Send the message again; return what tells Celery so. ``count`` of 1 counts as one of ``max_retries``."""
        request, countdown = self.request, self.countdown * (0.75 + random.random() / 2)
        retries = request.retries + count
        if request.is_eager or (count and self.max_retries is not None and retries > self.max_retries):
            raise why
        message: Any = self.signature_from_request(request, countdown=countdown, retries=retries)
        try:
            message.apply_async()
        except Exception as error:
            if self.acks_late:  # the broker still has it
                raise Reject(error, requeue=True) from error
            raise
        return Retry(exc=why, when=countdown, sig=message)


def locked_task(
    app: Any = None,
    *,
    name: Naming,
    on_busy: OnBusy = "retry",
    permits: int | None = None,
    wait: float = 0.0,
    countdown: float = 5.0,
    lease: float = 30.0,
    unique: Unique | None = None,
    unique_for: float = 3600.0,
    task_name: str | None = None,
    **options: Any,
) -> Callable[[Callable[..., Any]], Any]:
    """Make a decorator that makes a task under a lock: ``@locked_task(app, name="order:{order_id}")``.

    Args:
        app: the Celery app; None makes a ``shared_task``.
        name: the lock's name: a format string over the task's arguments, or a function of them that returns it.
        on_busy: what happens to a message whose lock is busy: ``retry``, ``skip`` or ``reject`` (needs ``acks_late``).
        permits: at most so many run at once; None is one, alone.
        wait: seconds that the worker waits for the lock before the task counts as busy.
        countdown: seconds until a message that was sent again runs, about: a quarter more or less.
        lease: seconds for which the store keeps the lock without a renewal, so also after a crash.
        unique: ``until_started`` or ``until_ended``: until then a second `apply_async` of the same name is dropped, and
            returns the result of the first. None queues all.
        unique_for: seconds for which a queued message drops others at most: longer than it may wait and run.
        task_name: Celery's name of the task; None takes that of the function.
        options: others of ``app.task``: ``bind``, ``acks_late``, ``max_retries``, ``base`` (a `LockedTask`).

    Raises:
        ValueError, TypeError: the name does not fit the function's arguments, or an option is out of its bounds.
    """
    options = {
        "base": LockedTask, **options, "lock": name, "on_busy": on_busy, "permits": permits, "wait": wait,
        "countdown": countdown, "lease": lease, "unique": unique, "unique_for": unique_for,
    }  # fmt: skip
    if not issubclass(options["base"], LockedTask):
        raise TypeError(f"base must be a LockedTask, not {options['base'].__name__}")

    def decorate(function: Callable[..., Any]) -> Any:
        TaskLock.check(options, function, bound=bool(options.get("bind")))
        if task_name is not None:
            options["name"] = task_name
        return (shared_task if app is None else app.task)(**options)(function)

    return decorate


def _in_canvas(options: dict[str, Any]) -> bool:
    if options.get("chain") is not None:  # that of the last task is empty
        return True
    return any(options.get(part) for part in ("chord", "group_id", "link", "link_error", "replaced_task_nesting"))


def _holders(client: Client, name: str) -> list[Contender]:
    info = client.inspect(name)
    return [] if info is None else list(info.holders)


def _id_of(holder: Contender) -> str | None:
    return holder.meta.get("id") if isinstance(holder.meta, dict) else None


def _short(text: str | None) -> str:
    return (text or "")[:200]
