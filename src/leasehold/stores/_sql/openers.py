"""What all openers of SQL stores do with their tables."""

from __future__ import annotations

from abc import ABC, abstractmethod

from leasehold._runtimes.base import Runtime
from leasehold.stores._sql.store import RowStore


class Prepared(ABC):
    """The opener of a store that needs tables."""

    @abstractmethod
    def open(self, runtime: Runtime, namespace: str) -> RowStore:
        """Open the store; it connects at the first use."""

    @abstractmethod
    def script(self) -> str:
        """Return the SQL that creates the tables. Running it twice is harmless."""

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
