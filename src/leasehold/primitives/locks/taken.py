"""Who holds a name, for those that ask whether it is taken: only as what they themselves would use it as."""

from __future__ import annotations

from leasehold._engine.engine import Engine
from leasehold._model import LockMode
from leasehold._rules import clash, other_use, use_of
from leasehold.errors import NameInUse


async def held_as(engine: Engine, name: str, mode: LockMode) -> list[LockMode]:
    """Return what each holder of a name has of it, none if nobody holds it.

    Raises:
        NameInUse: the name is in use as something else than ``mode`` says, where whatever was answered would be wrong.

    """
    engine.ready()
    held: list[LockMode] = []
    for view in await engine.store.inspect(name, exact=True):
        other = other_use([entry.ticket for entry in (*view.holders, *view.waiters)], mode)
        if other is not None:
            words = clash(name, use_of(other.terms.mode), mode)
            raise NameInUse(words, name=name, owner=str(engine.owner), held_by=str(other.terms.owner))
        held += [entry.ticket.terms.mode for entry in view.holders]
    return held
