"""The holders of a name, for `locked` and the like. A name in use as another primitive is an error."""

from __future__ import annotations

from leasehold._engine.engine import Engine
from leasehold._model import LockMode
from leasehold._rules import clash, other_use, use_of
from leasehold.errors import NameInUse


async def held_modes(engine: Engine, name: str, mode: LockMode) -> list[LockMode]:
    """Return the lock mode of each holder of a name.

    Raises:
        NameInUse: the name is in use as another primitive than that of ``mode``, so no answer would be right.

    """
    engine.ready()
    held: list[LockMode] = []
    for view in await engine.store.inspect(name, exact=True):
        other = other_use([entry.ticket for entry in (*view.holders, *view.waiters)], mode)
        if other is not None:
            message = clash(name, use_of(other.terms.mode), mode)
            raise NameInUse(message, name=name, owner=str(engine.owner), held_by=str(other.terms.owner))
        held += [entry.ticket.terms.mode for entry in view.holders]
    return held
