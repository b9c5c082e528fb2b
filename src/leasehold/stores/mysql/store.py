"""The MySQL store: lease rows on InnoDB; waiters poll."""

from __future__ import annotations

from leasehold._model import Finding
from leasehold._runtimes.base import Flavor, Runtime
from leasehold.errors import Unsupported
from leasehold.stores._sql.store import RowStore
from leasehold.stores.mysql import statements
from leasehold.stores.mysql.connection.settings import Settings
from leasehold.stores.mysql.connection.transport import MySQLTransport


class MySQLStore(RowStore):
    """See `leasehold.store_api.Store` for what each method promises."""

    def __init__(
        self, runtime: Runtime, settings: Settings, namespace: str, transport: MySQLTransport | None = None
    ) -> None:
        """Make a store; ``transport``, if given, replaces the connection to the database, for example by a model."""
        if transport is None and runtime.flavor is Flavor.SIMULATED:
            raise Unsupported("a real database cannot be reached from the simulated runtime; use a memory: store there")
        self.mysql = mysql = transport or MySQLTransport(runtime, settings)
        self._settings = settings
        super().__init__(runtime, namespace, statements.DIALECT, lambda on_message, on_disconnect: mysql)

    async def diagnose(self) -> list[Finding]:
        """Return what the server's settings mean for the promises."""
        from leasehold.stores.mysql import doctor

        return await doctor.examine(self._runtime, self.mysql, self._settings)
