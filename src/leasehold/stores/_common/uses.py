"""The error for a name that is in use as another primitive."""

from __future__ import annotations

from collections.abc import Iterable

from leasehold._model import LockMode, Ticket
from leasehold._rules import clash, other_use, use_of
from leasehold.errors import NameInUse


def refuse_other_use(name: str, tickets: Iterable[Ticket], mode: LockMode) -> None:
    """Raise `NameInUse` if one of the tickets uses the name as another primitive than ``mode``."""
    other = other_use(tickets, mode)
    if other is not None:
        raise name_in_use(name, use_of(other.terms.mode), mode, held_by=str(other.terms.owner))


def name_in_use(name: str, used: str, mode: LockMode, held_by: str | None = None) -> NameInUse:
    """Return the error for a name that is in use as another primitive."""
    return NameInUse(clash(name, used, mode), name=name, held_by=held_by)
