"""The MySQL store: lease rows on InnoDB; who waits looks."""

from __future__ import annotations

from leasehold.errors import Unsupported
from leasehold.model import Finding
from leasehold.runtimes.base import Colour, Runtime
from leasehold.stores.mysql import doctor, statements
from leasehold.stores.sql.making import prepare
from leasehold.stores.sql.store import RowStore
from leasehold.wires.mysql.settings import Settings
from leasehold.wires.mysql.wire import MySQLWire
from leasehold.wires.sql import OnMessage, OnSilence, SQLWire


class MySQLStore(RowStore):
    """See `leasehold.stores.base.Store` for what each method promises."""

    def __init__(self, runtime: Runtime, settings: Settings, namespace: str, wire: MySQLWire | None = None) -> None:
        """Make a store; ``wire`` reaches something else than the database of the settings, as a model of one."""
        if wire is None and runtime.colour is Colour.SIMULATED:
            raise Unsupported("a real database cannot be reached from the simulated world; use a memory: store there")

        self.mysql = wire = wire or MySQLWire(runtime, settings)

        def connect(on_message: OnMessage, on_silence: OnSilence) -> SQLWire:
            return wire

        self._settings = settings
        super().__init__(runtime, namespace, statements.DIALECT, connect)

    async def diagnose(self) -> list[Finding]:
        """Say what the server's settings mean for the promises."""
        return await doctor.examine(self._runtime, self.mysql, self._settings)

    async def prepare(self) -> bool:
        """Make the tables; return whether any was missing."""
        return await prepare(self._wire, statements.script())
