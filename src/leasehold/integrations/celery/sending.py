"""What a scheduler of Celery does differently while its node leads: it claims each run, sends it, and confirms it.

`Sending` is a base before the class of a scheduler, and changes four of its steps:

* *heap*: before entries are sorted by when they are due, each gets its last run from the store. What a former leader
  claimed and did not confirm is sent again. Entries that left the schedule are forgotten.
* *reserve*: the run is claimed in the store before the entry moves on.
* *send*: the lead is checked once more, right before the message goes to the broker. An error of the connection leaves
  the run claimed, and it is sent again with the same id. Celery itself would log the error and drop the run.
* *sync*: a former leader writes nothing: the next leader's values are in the database by now. The run of a one-off task
  of django-celery-beat is confirmed only once its row is written; each tick tries that again. After that the row alone
  says whether it runs again. Until then a later leader sends it again, with the same id.

What remains: a process that is stopped after the check and before the broker has the message sends it when it wakes up.
"""

# pyright: basic
# Celery has no types: each of its names is unknown to a strict check.

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from types import FrameType
from typing import Any

from celery.beat import SchedulingError
from celery.utils import uuid
from celery.utils.log import get_logger
from kombu.exceptions import OperationalError

from leasehold import Leadership, StoreUnavailable
from leasehold.integrations.celery.runs import Run, RunBook, in_utc, like

logger = get_logger("celery.beat")


class NotSent(Exception):
    """The broker, or the store that a unique task asks, was not reached. The run is still claimed."""


class Sending:
    """Stands before a scheduler class. ``leadership`` and ``book`` are attributes of the class that joins both."""

    leadership: Leadership
    book: RunBook
    _heap: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._unwritten: dict[str, tuple[Any, Run]] = {}  # one-off tasks that were sent, and their rows not written yet
        super().__init__(*args, **kwargs)

    def tick(self, *args: Any, **kwargs: Any) -> Any:
        """Send one due entry, as Celery does; after an error, all entries are read again."""
        with later_signals():
            try:
                self.book.settle()
                for entry, run in list(self._unwritten.values()):
                    self._confirm(entry, run)
                return super().tick(*args, **kwargs)  # type: ignore[misc]
            except BaseException:
                self._heap = None
                raise

    def populate_heap(self, *args: Any, **kwargs: Any) -> None:
        entries = list(self.schedule.values())  # type: ignore[attr-defined]
        self.book.keep_only({entry.name for entry in entries})
        for entry in entries:
            self._adopt(entry)
        super().populate_heap(*args, **kwargs)  # type: ignore[misc]

    def reserve(self, entry: Any) -> Any:
        run = Run(datetime.now(UTC), entry.total_run_count + 1, uuid(), sent=False)
        self.book.write(entry.name, run)
        self._unwritten.pop(entry.name, None)
        after = super().reserve(entry)  # type: ignore[misc]
        self._put(after, run)
        return after

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        run = self.book.last(entry.name)
        assert run is not None
        self._send(entry, run)

    def sync(self) -> None:
        if self.leadership.held:
            super().sync()  # type: ignore[misc]

    def _ensure_connected(self) -> Any:
        """Connect, or raise soon: the tick is tried again, and other nodes may reach the broker."""
        return self.connection.ensure_connection(  # type: ignore[attr-defined]
            max_retries=1, interval_start=0, interval_step=0
        )

    def _adopt(self, entry: Any) -> None:
        """Give an entry its last run, as the store has it, and send what a former leader left unconfirmed."""
        run = self.book.last(entry.name)
        if run is None:
            run = Run(in_utc(entry.last_run_at), entry.total_run_count, None, sent=True)
            self.book.write(entry.name, run)
        elif _is_one_off(entry) and run.task_id is not None and run.sent:
            pass  # its row was written before that: if it has not run, somebody wants it to run again
        elif run.at > in_utc(entry.last_run_at) or (entry.total_run_count == 0 and run.at < in_utc(entry.last_run_at)):
            self._put(entry, run)  # an entry that never ran has the time when this node first saw it
        if entry.name in self._unwritten:
            self._confirm(entry, run)
        elif not run.sent:
            logger.warning("Scheduler: Sending %s (%s) again: it may have been sent", entry.name, run.task_id)
            self._send(entry, run)

    def _put(self, entry: Any, run: Run) -> None:
        for each in filter(None, (entry, getattr(entry, "model", None))):  # the row of django-celery-beat, too
            each.last_run_at = like(run.at, entry.last_run_at)
            each.total_run_count = run.count
        if hasattr(entry, "model"):
            dirty: set[str] = getattr(self, "_dirty", set())
            dirty.add(entry.name)

    def _send(self, entry: Any, run: Run) -> None:
        producer = self.producer  # type: ignore[attr-defined]  # it may have to wait for the broker
        own = entry.options
        entry.options = {**own, "task_id": run.task_id}
        try:
            logger.info("Scheduler: Sending due task %s (%s)", entry.name, entry.task)
            self.leadership.raise_if_lost()  # the last thing before it is sent
            self.apply_async(entry, producer=producer, advance=False)  # type: ignore[attr-defined]
        except SchedulingError as error:
            errors = (OperationalError, StoreUnavailable, OSError, *self.connection.connection_errors)  # type: ignore[attr-defined]
            if isinstance(error.__context__, errors):
                raise NotSent(str(error)) from error
            logger.error("Message Error: %s", error, exc_info=True)  # it cannot be sent: Celery drops it, too
        finally:
            entry.options = own
        self._confirm(entry, run)

    def _confirm(self, entry: Any, run: Run) -> None:
        """Confirm a run that was sent; that of a one-off task once its row is written, if need be in a later tick."""
        if _is_one_off(entry) and not self._write_row(entry):
            self._unwritten[entry.name] = entry, run
            return
        self._unwritten.pop(entry.name, None)
        self.book.confirm(entry.name, run)

    def _write_row(self, entry: Any) -> bool:
        """Write that a one-off task has run; return whether its row will not make it run again for certain."""
        if not self.leadership.held:
            return False
        try:
            if entry.model.enabled:
                entry.save()
            else:  # it was being switched off, which has failed if the database did not answer
                entry.model.total_run_count = 0  # so it runs when it is on again
                entry.model.save()
        except getattr(entry.model, "DoesNotExist", ()):
            pass  # somebody has removed it
        except Exception:
            if entry.name not in self._unwritten:
                logger.exception("beat: the row of %s was not written; each tick tries again", entry.name)
            return False
        getattr(self, "_dirty", set()).discard(entry.name)  # a later write would undo that it is switched on again
        return True


def _is_one_off(entry: Any) -> bool:
    """Return whether django-celery-beat switches the entry off after a run, and counts from 0 when it is on again."""
    return bool(getattr(getattr(entry, "model", None), "one_off", False))


@contextmanager
def later_signals() -> Iterator[None]:
    """Call the handlers of SIGTERM and SIGINT at the end of the block, so that no run ends between two steps.

    A second signal does not wait: a broker may hang.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    usual: dict[int, Any] = {}

    def put_back() -> None:
        while usual:
            number, handler = usual.popitem()
            signal.signal(number, handler)

    def note(number: int, _: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1:
            put_back()
            signal.raise_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        handler = signal.getsignal(number)
        if callable(handler):
            usual[number] = handler
            signal.signal(number, note)
    try:
        yield
    finally:
        put_back()
        if came:
            signal.raise_signal(came[0])
