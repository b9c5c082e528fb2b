"""Logs events: losses and doubts as warnings, all others at DEBUG.

A record's text is for people. For machines, each record has one more attribute: ``leasehold``, a dictionary with the
fields of the event, and its class as ``event``. One name cannot collide with the attributes of `logging.LogRecord`.
"""

from __future__ import annotations

import logging
import traceback
from dataclasses import fields
from typing import Any

from leasehold._runtimes.base import call_user_code
from leasehold.events import Acquired, Event, GaveUp, InDoubt, Lost, Observer, Queued, Released, Renewed

log = logging.getLogger("leasehold")

CALLED = {"mutex": "lock", "rw": "read-write lock"}
"""The kinds of events that people know by another name."""


class Logged:
    """An observer that logs, and then calls the user's own if there is one."""

    __slots__ = ("_observer",)

    def __init__(self, observer: Observer | None) -> None:
        self._observer = observer

    def wants(self, kind: type[Event]) -> bool:
        """Return whether events of this kind are observed or logged."""
        return self._observer is not None or log.isEnabledFor(logging.DEBUG)

    def __call__(self, event: Event) -> None:
        try:
            level = severity(event)
            if log.isEnabledFor(level):
                subject, args = f"{CALLED.get(event.kind, event.kind)} %r", [event.name]
                if token := getattr(event, "token", None):
                    subject, args = f"{subject} (token %d)", [*args, token]
                text, *facts = told(event)
                log.log(level, f"{subject}: {text}", *args, *facts, extra={"leasehold": as_dict(event)})
        except Exception:  # a failing log filter must not keep a loss from the observer
            traceback.print_exc()
        if self._observer is not None:
            try:
                call_user_code(self._observer, event)
            except Exception:
                log.exception("an observer failed")


def severity(event: Event) -> int:
    """Return the logging level of an event."""
    match event:
        case Lost() | InDoubt() | Released(confirmed=False):
            return logging.WARNING
        case _:
            return logging.DEBUG


def told(event: Event) -> tuple[Any, ...]:
    """Return the text of an event for people, with its arguments: programs that group log records need them apart."""
    match event:
        case Queued():
            return "waits; held by %s", event.held_by or "somebody else"
        case Acquired():
            return "acquired after %.3g s", event.waited
        case GaveUp():
            return "not acquired after %.3g s: %s", event.waited, event.why
        case InDoubt():
            why = event.error or "the store did not confirm it"
            return "renewal failed: %s; held for another %.1f s", why, event.remaining
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
