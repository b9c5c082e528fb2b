"""The lock inside another primitive: a plain exclusive lock with a name of its own."""

from __future__ import annotations

from leasehold import validate
from leasehold.engine.acquire import Engine
from leasehold.model import Rule
from leasehold.primitives.lock import AsyncLock
from leasehold.primitives.options import Options
from leasehold.validate import Seconds


def guard(
    engine: Engine,
    kind: str,
    name: str,
    *,
    lease: Seconds,
    renew: bool = True,
    max_hold: Seconds | None = None,
    timeout: Seconds | None = None,
) -> AsyncLock:
    """Make the lock ``kind/name``, as which `holds` shows it."""
    options = Options.checked(
        engine, Rule(), lease=lease, renew=renew, max_hold=max_hold, delay=0.0, timeout=timeout, meta=None
    )
    return AsyncLock(engine, validate.name(f"{kind}/{validate.name(name)}"), options)
