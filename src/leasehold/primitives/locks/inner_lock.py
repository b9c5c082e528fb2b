"""The lock inside another primitive: a plain exclusive lock with a name of its own."""

from __future__ import annotations

from typing import Unpack

from leasehold import _validate
from leasehold._engine.engine import Engine
from leasehold._model import LockMode
from leasehold.primitives.locks.lock import AsyncLock
from leasehold.primitives.locks.options import LockOptions, Options


def guard(engine: Engine, kind: str, name: str, **options: Unpack[LockOptions]) -> AsyncLock:
    """Make the lock ``kind/name``, as which `holds` shows it."""
    return AsyncLock(
        engine, _validate.name(f"{kind}/{_validate.name(name)}"), Options.checked(engine, LockMode(), options)
    )
