"""Logs events: losses and doubts as warnings, all others at DEBUG.

A record's text is for people. For machines, each record has one more attribute: ``leasehold``, a dictionary with the
fields of the event, and its class as ``event``. One name cannot collide with the attributes of `logging.LogRecord`.
"""

from __future__ import annotations

import logging
from dataclasses import fields
from typing import Any, cast

from leasehold._runtimes.base import call_user_code, is_own_error
from leasehold._runtimes.log import log
from leasehold.events import (
    Acquired,
    Event,
    GaveUp,
    InDoubt,
    Lost,
    Observer,
    Queued,
    Reconnected,
    Released,
    Renewed,
    RenewedLate,
    RequestFailed,
    SelectiveObserver,
    Tally,
)

CALLED = {"mutex": "lock", "rw": "read-write lock"}
"""The kinds of events that people know by another name."""


OF_A_HOLD: tuple[type[Event], ...] = (Queued, Acquired, GaveUp, InDoubt, Renewed, Lost, Released)
"""What every observer gets."""

OF_THE_STORE: tuple[type[Event], ...] = (RequestFailed, Reconnected, RenewedLate)
"""What an observer gets that wants it."""


def wanted_by(observer: Observer | None) -> frozenset[type[Event]]:
    """Return the classes of events that an observer gets."""
    if observer is None:
        return frozenset()
    if not hasattr(observer, "wants"):
        return frozenset(OF_A_HOLD)
    wants = cast(SelectiveObserver, observer).wants
    return frozenset(kind for kind in OF_A_HOLD + OF_THE_STORE if wants(kind))


def is_for(wanted: frozenset[type[Event]], event: Event) -> bool:
    """Return whether an observer that wants these classes gets an event: always a release without a confirmation."""
    return type(event) in wanted or (isinstance(event, Released) and not event.confirmed and bool(wanted))


def tally_of(observer: Observer | None) -> Tally | None:
    """Return an observer as a `Tally`, if it is one."""
    if hasattr(observer, "acquired") and hasattr(observer, "released"):
        return cast(Tally, observer)
    return None


class Logged:
    """An observer that logs, and then calls the user's own if there is one."""

    __slots__ = ("_acquired", "_observer", "_released", "_wanted", "tally")

    def __init__(self, observer: Observer | None) -> None:
        self._observer = observer
        self._wanted = wanted_by(observer)
        self.tally: Tally | None = None  # this object, if the user's observer takes bare figures
        if (tally := tally_of(observer)) is not None:
            self.tally, self._acquired, self._released = self, tally.acquired, tally.released

    def wants(self, kind: type[Event]) -> bool:
        """Return whether events of this kind are observed or logged."""
        return kind in self._wanted or log.is_enabled_for(logging.DEBUG)

    def acquired(self, name: str, waited: float, queued: bool) -> None:
        """Pass the figures of an acquire on."""
        try:
            self._acquired(name, waited, queued)
        except Exception:
            log.exception("an observer failed")

    def released(self, name: str, held: float) -> None:
        """Pass the figures of a release on."""
        try:
            self._released(name, held)
        except Exception:
            log.exception("an observer failed")

    def __call__(self, event: Event) -> None:
        level = severity(event)
        if log.is_enabled_for(level):
            subject, args = f"{CALLED.get(event.kind, event.kind)} %r", [event.name]
            if token := getattr(event, "token", None):
                subject, args = f"{subject} (token %d)", [*args, token]
            text, *facts = text_of(event)
            log.log(level, f"{subject}: {text}", *args, *facts, extra={"leasehold": as_dict(event)})
        if self._observer is not None and is_for(self._wanted, event):
            try:
                call_user_code(self._observer, event)
            except BaseException as error:
                if not is_own_error(error):
                    raise
                log.exception("an observer failed")


def severity(event: Event) -> int:
    """Return the logging level of an event."""
    match event:
        case Lost() | InDoubt() | Released(confirmed=False):
            return logging.WARNING
        case _:
            return logging.DEBUG


def text_of(event: Event) -> tuple[Any, ...]:
    """Return the text of an event for people, with its arguments: programs that group log records need them apart."""
    match event:
        case Queued():
            return "waits; held by %s", event.held_by or "another holder"
        case Acquired():
            return "acquired after %.3g s", event.waited
        case GaveUp():
            return "not acquired after %.3g s: %s", event.waited, event.why
        case InDoubt():
            why = event.error or "the store did not confirm it"
            return "renewal failed: %s; held for another %.1f s", why, event.remaining
        case RequestFailed():
            return "request (%s) failed: %s", event.request, event.error
        case Reconnected():
            return "the store answers again, %.3g s after a request had failed", event.after
        case RenewedLate():
            return "renewed late, when %.1f s of its lease were left", event.remaining
        case Renewed():
            return ("renewed after a failure",)
        case Lost(error=None):
            return "lost: %s", event.why
        case Lost():
            return "lost: %s; the last renewal failed: %s", event.why, event.error
        case Released(confirmed=True):
            return "released after %.3g s", event.held
        case Released():
            return (
                "released after %.3g s, but the store did not confirm; free by the end of its lease at the latest",
                event.held,
            )
        case _:
            return "%s", event


def as_dict(event: Event) -> dict[str, object]:
    """Return the fields of an event, as values that JSON knows."""
    facts = {each.name: getattr(event, each.name) for each in fields(event)}
    return {"event": type(event).__name__, **facts, "error": None if event.error is None else str(event.error)}
