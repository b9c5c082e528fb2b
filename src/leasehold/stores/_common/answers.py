"""What all stores answer in the same way: a failure with its remedy, a name in other use, a batch of renewals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from leasehold._model import LockMode, RenewalResult, Ticket
from leasehold._rules import clash, other_use, use_of
from leasehold.errors import NameInUse, StoreUnavailable


def with_remedy(said: str, remedy: str) -> str:
    """Join the two. Texts of drivers and servers may end with punctuation of their own, as "Connection refused."."""
    return f"{said.rstrip(' .;:,')}; {remedy}"


def refuse_other_use(name: str, tickets: Iterable[Ticket], mode: LockMode) -> None:
    """Raise `NameInUse` if one of the tickets uses the name as another primitive than ``mode``."""
    other = other_use(tickets, mode)
    if other is not None:
        raise name_in_use(name, use_of(other.terms.mode), mode, held_by=str(other.terms.owner))


def name_in_use(name: str, used: str, mode: LockMode, held_by: str | None = None) -> NameInUse:
    """Return the error for a name that is in use as another primitive."""
    return NameInUse(clash(name, used, mode), name=name, held_by=held_by)


def answered(results: Sequence[RenewalResult | BaseException]) -> list[RenewalResult]:
    """Return the results, with UNKNOWN in place of errors.

    Raises:
        StoreUnavailable: there are errors and no results. The holders' log shows the reason.
    """
    errors = [one for one in results if isinstance(one, StoreUnavailable)]
    if errors and len(errors) == len(results):
        raise errors[0]
    return [one if isinstance(one, RenewalResult) else RenewalResult.UNKNOWN for one in results]
