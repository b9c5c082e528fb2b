"""The lock inside another primitive: `once`, `cached` and `scheduled` have one."""

from __future__ import annotations

from leasehold import _validate
from leasehold._engine.engine import Engine
from leasehold._model import LockMode
from leasehold._validate import Seconds
from leasehold.primitives.locks.lock import AsyncLock
from leasehold.primitives.locks.options import Options


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
    """Make the lock inside another primitive: plain, and with the name ``kind/name``, as which `holds` shows it."""
    full = _validate.name(f"{kind}/{_validate.name(name)}")
    checked = Options.checked(engine, LockMode(), lease=lease, renew=renew, max_hold=max_hold, timeout=timeout)
    return AsyncLock(engine, full, checked, "warn")
