"""The Redis store (Redis 6.2 or later, Valkey): one server, Sentinel, a cluster, or several servers by Redlock.

`Redlock`, `Strict` and the other openers are in ``openers.py``. They are imported at their first use, so that modules
of this package can be imported without the driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leasehold.stores.redis.openers import Redlock as Redlock
    from leasehold.stores.redis.strict.quorum import Strict as Strict


def __getattr__(name: str) -> Any:
    if name in ("Redlock", "Strict"):
        from leasehold.stores.redis import openers

        return getattr(openers, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
