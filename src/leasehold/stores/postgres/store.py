"""The PostgreSQL store: lease rows, with a message for each hand-over."""

from __future__ import annotations

from collections.abc import Callable

from leasehold._model import Finding
from leasehold._runtimes.base import Flavor, Runtime
from leasehold.errors import Unsupported
from leasehold.stores._sql.store import RowStore
from leasehold.stores._sql.transport import OnDisconnect, OnMessage, SQLTransport
from leasehold.stores.postgres import statements
from leasehold.stores.postgres.connection.aio import AioTransport
from leasehold.stores.postgres.connection.base import PostgresTransport
from leasehold.stores.postgres.connection.blocking import BlockingTransport
from leasehold.stores.postgres.connection.settings import Settings

MakeTransport = Callable[[Runtime, Settings, OnMessage, OnDisconnect], PostgresTransport]


class PostgresStore(RowStore):
    """See `leasehold.store_api.Store` for what each method promises."""

    _postgres: PostgresTransport

    def __init__(
        self, runtime: Runtime, settings: Settings, namespace: str, transport: MakeTransport | None = None
    ) -> None:
        """Make a store. ``transport``, if given, replaces the connection to the database, for example by a model."""
        if transport is None and runtime.flavor is Flavor.SIMULATED:
            raise Unsupported("a real database cannot be reached from the simulated runtime; use a memory: store there")

        def connect(on_message: OnMessage, on_disconnect: OnDisconnect) -> SQLTransport:
            make = transport or (BlockingTransport if runtime.flavor is Flavor.SYNC else AioTransport)
            self._postgres = make(runtime, settings, on_message, on_disconnect)
            return self._postgres

        super().__init__(runtime, namespace, statements.DIALECT, connect)

    async def diagnose(self) -> list[Finding]:
        """Return what the server's settings, and a pooler in front of it, mean for the promises."""
        from leasehold.stores.postgres import doctor

        return await doctor.examine(self._runtime, self._postgres)
