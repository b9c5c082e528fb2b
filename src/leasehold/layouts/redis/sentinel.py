"""The store for locks in the format of another library, on the primary that sentinels name."""

from __future__ import annotations

from leasehold._runtimes.base import Runtime
from leasehold.layouts.redis.layout import Layout
from leasehold.layouts.redis.store import LayoutStore
from leasehold.stores.redis.connection.base import MakeTransport
from leasehold.stores.redis.sentinel.sentinel import SentinelSettings
from leasehold.stores.redis.sentinel.store import SentinelStore


class SentinelLayoutStore(SentinelStore, LayoutStore):
    """See `leasehold.store_api.Store` for what each method promises."""

    def __init__(
        self,
        runtime: Runtime,
        watched: SentinelSettings,
        namespace: str,
        *,
        layout: Layout,
        make: MakeTransport | None = None,
    ) -> None:
        make = self._prepare(runtime, layout, make)  # for the primary, which the transport that finds it makes
        super().__init__(runtime, watched, namespace, make=make)
