"""What the openers of all SQL stores do: open the store of a mode, and create its tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

from leasehold._runtimes.base import Runtime
from leasehold.stores._sql.dialect import Dialect
from leasehold.stores._sql.store import RowStore


@dataclass(frozen=True)
class SQLOpener:
    """Opens the locks of one database: leases in its tables, or with mode "session" the server's own locks."""

    dialect: ClassVar[Dialect]
    stores: ClassVar[Mapping[str, str]]
    """Module and class of the store of each mode, which is imported when it is opened: a program has one mode."""

    settings: Any
    mode: str = "rows"

    def open(self, runtime: Runtime, namespace: str) -> RowStore:
        """Open the store; it connects at the first use."""
        module, _, name = self.stores[self.mode].rpartition(".")
        store: RowStore = getattr(import_module(module), name)(runtime, self.settings, namespace)
        return store

    def script(self) -> str:
        """Return the SQL that creates the tables. Running it twice is harmless."""
        return self.dialect.script()

    async def prepare(self, runtime: Runtime) -> bool:
        """Create the tables; return whether any was missing.

        Raises:
            StoreUnavailable: they could not be created.
            Unsupported: they exist in a layout that this version does not know.
        """
        store = self.open(runtime, "default")
        try:
            return await store.prepare()
        finally:
            await store.close()
