"""Beat on every node: `ElectedScheduler` runs another scheduler while its node leads, and stands by otherwise.

Theory of operation
-------------------
Each node campaigns in one election. The leader makes the inner scheduler (Celery's `PersistentScheduler`,
django-celery-beat's `DatabaseScheduler`), and ticks it. `sending.py` says what is done at each send, and `runs.py` how
the next leader knows what was sent.

* A leader that dies is followed when its lease ends: ``beat_leasehold_lease`` seconds after its last renewal at most.
  One that ends by SIGTERM resigns: another follows at once.
* A leader that was stopped finds by its own clock, before it ticks, that it does not lead any more. It drops the inner
  scheduler without a write, and stands by.
* Entries that were due without a leader are sent by the next leader, each once, as Celery does after a restart.
* Nothing is sent that the store has not confirmed: while it does not answer, runs wait. So they do while the broker
  does not answer. A leader that fails for a lease resigns, and stays away for a lease: others may reach both.

Settings of the app: ``beat_inner_scheduler`` ("celery.beat:PersistentScheduler"), ``beat_leasehold_url`` (that of
``leasehold_url``), ``beat_leasehold_name`` ("celery-beat/" and the name of the app), ``beat_leasehold_lease`` (10).
"""

# pyright: basic
# Celery has no types: each of its names is unknown to a strict check.

from __future__ import annotations

import time
from typing import Any

from celery.beat import PersistentScheduler, Scheduler
from celery.utils.imports import load_extension_class_names, symbol_by_name
from celery.utils.log import get_logger
from kombu.exceptions import OperationalError

from leasehold import Conflict, Election, Leadership, LeaseLost, NotHeld, StoreUnavailable
from leasehold.integrations.celery.clients import client_at
from leasehold.integrations.celery.runs import Run, RunBook
from leasehold.integrations.celery.sending import NotSent, Sending

logger = get_logger("celery.beat")

LEASE = 10.0
"""Seconds of the lease of the lead, unless ``beat_leasehold_lease`` says another."""

STAND_BY = 5.0
"""Seconds of one wait for the lead; it is woken at once when the lead is free."""

TRY_AGAIN = 0.5
"""Seconds after which a leader tries again what the store or the broker did not answer."""

PASSING = (Conflict, StoreUnavailable, NotSent, OperationalError)
"""Errors that may be over soon."""


class ElectedScheduler(Scheduler):  # type: ignore[misc]
    """A scheduler for any number of nodes: ``celery beat -S leasehold.integrations.celery:ElectedScheduler``."""

    def __init__(
        self,
        app: Any,
        schedule: Any = None,
        max_interval: Any = None,
        Producer: Any = None,
        lazy: bool = False,
        sync_every_tasks: Any = None,
        **kwargs: Any,
    ) -> None:
        """Stand by; ``lazy`` makes what only shows itself. The inner scheduler is made by the leader."""
        conf = app.conf
        self.app = app
        self._inner_class = inner_class(conf.get("beat_inner_scheduler") or PersistentScheduler)
        self._given = {
            "schedule": schedule, "max_interval": max_interval, "Producer": Producer,
            "sync_every_tasks": sync_every_tasks, **kwargs,
        }  # fmt: skip
        self.max_interval = max_interval or conf.beat_max_loop_interval or self._inner_class.max_interval
        self._name = conf.get("beat_leasehold_name") or f"celery-beat/{app.main or 'celery'}"
        self._lease = float(conf.get("beat_leasehold_lease") or LEASE)
        self._inner: Any = None
        self._leadership: Leadership | None = None
        self._known: dict[str, Run] = {}
        self._failing_since: float | None = None
        self._campaigns_from = 0.0
        if not lazy:
            self._election()  # wrong settings are found at the start

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Tick the inner scheduler if this node leads, else wait for the lead; return seconds until the next tick."""
        try:
            if self._inner is None and not self._leads():
                return TRY_AGAIN if self._campaigns_from > time.monotonic() else 0.0
            assert self._leadership is not None
            self._leadership.raise_if_lost()
            inner: Any = self._inner
            pause: float = inner.tick()
        except (LeaseLost, NotHeld) as error:
            logger.warning("beat: this node leads no more: %s", error)
            self._end()
            return 0.0
        except PASSING as error:
            if getattr(error, "lasting", False):
                raise
            return self._failed(error)
        self._answered("the store and the broker answer")
        return min(pause, self._lease / 2)  # a lead that was lost is noticed soon

    def should_sync(self) -> bool:
        return self._inner is not None and bool(self._inner.should_sync())

    def _do_sync(self) -> None:
        if self._inner is not None:
            self._inner._do_sync()

    def sync(self) -> None:
        if self._inner is not None:
            self._inner.sync()

    def close(self) -> None:
        """Close the inner scheduler, and resign: another node leads at once. A signal handler may call it."""
        self._end()

    @property
    def schedule(self) -> Any:
        """The entries of the inner scheduler; none while this node does not lead."""
        return {} if self._inner is None else self._inner.schedule

    @property
    def info(self) -> str:
        inner = f"{self._inner_class.__module__}.{self._inner_class.__qualname__}"
        return f"    . inner -> {inner}\n    . election -> {self._name}, lease {self._lease:g} s"

    def _election(self) -> Election:
        conf = self.app.conf
        self._client = client_at(conf, conf.get("beat_leasehold_url") or conf.get("leasehold_url"))
        return self._client.election(self._name, lease=self._lease)

    def _leads(self) -> bool:
        """Campaign for a while; return whether this node leads, with its inner scheduler made."""
        if self._campaigns_from > time.monotonic():
            return False
        leadership = self._leadership
        if leadership is None:
            leadership = self._election().campaign(timeout=STAND_BY)
            self._answered("the store answers")  # an outage before it leads does not count
        if leadership is None:
            return False
        self._leadership = leadership
        book = RunBook(self._client, self._name, leadership.token, self._known)
        own = {"leadership": leadership, "book": book}
        made: Any = type(f"Elected{self._inner_class.__name__}", (Sending, self._inner_class), own)
        self._inner = made(app=self.app, lazy=False, **self._given)
        self.max_interval = self._inner.max_interval
        logger.info("beat: this node leads, with token %d", leadership.token)
        return True

    def _answered(self, text: str) -> None:
        if self._failing_since is not None:
            logger.info("beat: %s again", text)
        self._failing_since = None

    def _failed(self, error: Exception) -> float:
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
            logger.warning("beat: nothing is sent until this is over: %s", error)
        if self._leadership is not None and now - self._failing_since > self._lease:
            logger.warning("beat: this node resigns: %s", error)
            self._end()
            self._failing_since = None
            self._campaigns_from = now + self._lease
        return TRY_AGAIN

    def _end(self) -> None:
        """Drop the inner scheduler, which writes nothing if the lead was lost, and resign."""
        inner, self._inner = self._inner, None
        leadership, self._leadership = self._leadership, None
        try:
            if inner is not None:
                inner.close()
        except Exception:
            logger.exception("beat: the inner scheduler was not closed")
        finally:
            try:
                if leadership is not None:
                    leadership.release()
            except LeaseLost:
                pass


def inner_class(given: Any) -> Any:
    """Return the class of the inner scheduler: a class, its path, or a name as ``django``.

    Raises:
        TypeError: it is no scheduler of Celery, or another elected one.
    """
    found = symbol_by_name(given, aliases=dict(load_extension_class_names("celery.beat_schedulers")))
    if not (isinstance(found, type) and issubclass(found, Scheduler)) or issubclass(found, ElectedScheduler):
        raise TypeError(f"beat_inner_scheduler must be a scheduler of Celery as celery.beat:Scheduler, not {given!r}")
    return found
