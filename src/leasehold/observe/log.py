"""Events to `logging`: what a holder must know as warnings, the rest for those who debug."""

from __future__ import annotations

import logging

from leasehold.engine.events import Event, InDoubt, Lost, Observer, Released

log = logging.getLogger("leasehold")


def logged(observer: Observer | None) -> Observer:
    """Return an observer that logs, and then calls ``observer`` if there is one."""

    def observe(event: Event) -> None:
        level = severity(event)
        if log.isEnabledFor(level):
            log.log(level, "%s", event)
        if observer is not None:
            try:
                observer(event)
            except Exception:
                log.exception("an observer failed")

    return observe


def severity(event: Event) -> int:
    """Return the logging level of an event."""
    match event:
        case Lost() | InDoubt() | Released(confirmed=False):
            return logging.WARNING
        case _:
            return logging.DEBUG
