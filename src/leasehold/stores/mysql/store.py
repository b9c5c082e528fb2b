"""The MySQL store: lease rows on InnoDB; who waits looks."""

from __future__ import annotations

from leasehold.errors import StoreUnavailable, Unsupported
from leasehold.model import Finding
from leasehold.runtimes.base import Colour, Runtime
from leasehold.stores.mysql import doctor, statements
from leasehold.stores.sql import schema
from leasehold.stores.sql.store import PATIENCE, RowStore
from leasehold.wires.mysql.settings import Settings
from leasehold.wires.mysql.wire import MySQLWire
from leasehold.wires.sql import OnMessage, OnSilence, SQLWire, Statement, Transaction

LAYOUT = Statement("SELECT version FROM leasehold_meta")


class MySQLStore(RowStore):
    """See `leasehold.stores.base.Store` for what each method promises."""

    def __init__(self, runtime: Runtime, settings: Settings, namespace: str) -> None:
        if runtime.colour is Colour.SIMULATED:
            raise Unsupported("a real database cannot be reached from the simulated world; use a memory: store there")

        self.mysql = wire = MySQLWire(runtime, settings)

        def connect(on_message: OnMessage, on_silence: OnSilence) -> SQLWire:
            return wire

        self._settings = settings
        super().__init__(runtime, namespace, statements.DIALECT, connect)

    async def diagnose(self) -> list[Finding]:
        """Say what the server's settings mean for the promises."""
        return await doctor.examine(self._runtime, self.mysql, self._settings)

    async def prepare(self) -> bool:
        """Make the tables; return whether any was missing."""

        async def work(tx: Transaction) -> None:
            await tx.commit(*(Statement(text) for text in schema.split(statements.script())))

        try:
            await self._version()
        except StoreUnavailable as error:
            if not error.lasting:
                raise
        else:
            return False
        await self._wire.transact(work, within=PATIENCE * 6)
        await self._version()
        return True

    async def _version(self) -> None:
        async def work(tx: Transaction) -> None:
            (found,) = await tx.ask(LAYOUT)
            schema.check([(None, row[0]) for row in found])

        await self._wire.transact(work, within=PATIENCE)
