"""The lock inside another primitive: a plain exclusive lock with a name of its own."""

from __future__ import annotations

from typing import Unpack

from leasehold import validate
from leasehold.engine.acquire import Engine
from leasehold.model import Rule
from leasehold.primitives.lock import AsyncLock
from leasehold.primitives.options import LockOptions, Options


def guard(engine: Engine, kind: str, name: str, **options: Unpack[LockOptions]) -> AsyncLock:
    """Make the lock ``kind/name``, as which `holds` shows it."""
    return AsyncLock(engine, validate.name(f"{kind}/{validate.name(name)}"), Options.checked(engine, Rule(), options))
