"""Logs events: losses and doubts as warnings, all others at DEBUG."""

from __future__ import annotations

import logging
import traceback

from leasehold._runtimes.base import call_user_code
from leasehold.events import Event, InDoubt, Lost, Observer, Released

log = logging.getLogger("leasehold")


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
                log.log(level, "%s", event)
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
