"""Several observers as one.

Example:
    ```python
    from leasehold import Client
    from leasehold.observability.combined import Combined
    from leasehold.observability.history import History

    history = History()
    with Client.from_url("memory:", observer=Combined(history, print)) as locks, locks.lock("stock:42"):
        pass
    ```
"""

from __future__ import annotations

from leasehold._runtimes.base import call_user_code, is_own_error
from leasehold._runtimes.log import log
from leasehold.events import Event, Observer
from leasehold.observability.log import is_for, tally_of, wanted_by

__all__ = ["Combined"]


class Combined:
    """Calls observers in their order, each with what it wants. One that fails keeps nothing from the others."""

    def __init__(self, *observers: Observer) -> None:
        """Combine observers."""
        self._observers = [(observer, wanted_by(observer)) for observer in observers]
        self._tallies = [tally for observer in observers if (tally := tally_of(observer)) is not None]

    def wants(self, kind: type[Event]) -> bool:
        """Return whether one of them wants events of this kind."""
        return any(kind in wanted for _, wanted in self._observers)

    def __call__(self, event: Event) -> None:
        """Pass an event on."""
        for observer, wanted in self._observers:
            if is_for(wanted, event):
                try:
                    call_user_code(observer, event)
                except BaseException as error:
                    if not is_own_error(error):
                        raise
                    log.exception("an observer failed")

    def acquired(self, name: str, waited: float, queued: bool) -> None:
        """Pass the figures of an acquire on."""
        for tally in self._tallies:
            try:
                tally.acquired(name, waited, queued)
            except Exception:
                log.exception("an observer failed")

    def released(self, name: str, held: float) -> None:
        """Pass the figures of a release on."""
        for tally in self._tallies:
            try:
                tally.released(name, held)
            except Exception:
                log.exception("an observer failed")
