"""Hazelcast: locks in its CP subsystem, shared with Java's ``FencedLock``."""

from __future__ import annotations

from dataclasses import dataclass

from leasehold._runtimes.base import Flavor, Runtime
from leasehold._url import StoreURL
from leasehold.errors import Unsupported
from leasehold.store_api import Store
from leasehold.stores._common.names import before
from leasehold.stores.hazelcast.connection import settings as driver_settings
from leasehold.stores.hazelcast.connection.settings import Settings
from leasehold.stores.hazelcast.store import FencedLockStore

__all__ = ["FencedLockStore", "Hazelcast", "from_url"]


@dataclass(frozen=True, slots=True)
class Hazelcast:
    """Opens a cluster."""

    settings: Settings

    def open(self, runtime: Runtime, namespace: str) -> Store:
        """Open the store; it connects at first use. The default namespace adds nothing to the names of locks."""
        if runtime.flavor is Flavor.SIMULATED:
            raise Unsupported("Hazelcast cannot be reached from the simulated runtime; use a memory: store there")
        return FencedLockStore(runtime, self.settings, before(namespace))


def from_url(url: StoreURL) -> Hazelcast:
    """Read ``hazelcast://h1,h2,h3/cluster``, with ``user:password@`` and options; ``hazelcasts://`` for TLS.

    Raises:
        ValueError: an option, the credentials or the path cannot be used.
    """
    return Hazelcast(driver_settings.from_url(url))
