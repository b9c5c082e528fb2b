"""The PostgreSQL store: lease rows, and a message for each hand-over."""

from __future__ import annotations

from collections.abc import Callable

from leasehold._model import Finding
from leasehold._runtimes.base import Colour, Runtime
from leasehold.errors import Unsupported
from leasehold.stores._sql.store import PATIENCE, RowStore
from leasehold.stores._sql.tables.making import prepare
from leasehold.stores._sql.transport import OnMessage, OnSilence, SQLWire, Statement
from leasehold.stores.postgres import doctor, statements
from leasehold.stores.postgres.connection.aio import AioWire
from leasehold.stores.postgres.connection.base import PostgresWire
from leasehold.stores.postgres.connection.blocking import BlockingWire
from leasehold.stores.postgres.connection.settings import Settings

MakeWire = Callable[[Runtime, Settings, OnMessage, OnSilence], PostgresWire]

ALONE = Statement("SELECT pg_advisory_xact_lock(7235419080266545006)")
"""Two who make the tables at the same time would both find them missing."""


class PostgresStore(RowStore):
    """See `leasehold.store_api.Store` for what each method promises."""

    _postgres: PostgresWire

    def __init__(self, runtime: Runtime, settings: Settings, namespace: str, wire: MakeWire | None = None) -> None:
        """Make a store; ``wire`` makes what reaches something else than the database of the settings, as a model."""
        if wire is None and runtime.colour is Colour.SIMULATED:
            raise Unsupported("a real database cannot be reached from the simulated world; use a memory: store there")

        def connect(on_message: OnMessage, on_silence: OnSilence) -> SQLWire:
            make = wire or (BlockingWire if runtime.colour is Colour.BLOCKING else AioWire)
            self._postgres = make(runtime, settings, on_message, on_silence)
            return self._postgres

        super().__init__(runtime, namespace, statements.DIALECT, connect)

    async def diagnose(self) -> list[Finding]:
        """Say what the server's settings, and what stands in front of it, mean for the promises."""
        answers = await self._wire.transact(doctor.look, within=PATIENCE)
        facts = self._postgres.facts
        return doctor.findings(
            answers,
            self._runtime,
            pooled=facts["pooled"],
            past=self._postgres.settings.ears is not None,
            encrypted=facts["encrypted"],
            local=self._postgres.settings.local,
            read_only=facts["read_only"],
        )

    async def prepare(self) -> bool:
        """Make the tables; return whether any was missing."""
        return await prepare(self._wire, statements.script(), [ALONE])
