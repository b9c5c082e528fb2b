"""For the tests of programs that use leasehold: a private store in memory, a clock to move, and losses on request.

The fixture ``locks`` of the pytest plug-in is a `TestClient`, a new one for each test, and needs no configuration. In
other test frameworks make it yourself: ``with TestClient() as locks: …``. See docs/testing.md for examples.
"""

from __future__ import annotations

import secrets
from contextlib import suppress

from leasehold._inspection import LockInfo
from leasehold._model import ReleaseReason
from leasehold._runtimes import process
from leasehold._runtimes.base import run_sync
from leasehold._runtimes.manual import ManualAsyncioRuntime, ManualBlockingRuntime, ManualClock
from leasehold.client.aio import AsyncClient
from leasehold.client.blocking import Client
from leasehold.primitives.locks.hold import AsyncHold, Hold
from leasehold.stores.memory import Memory

__all__ = ["ManualClock", "TestClient"]


class TestClient(Client):
    """A client of a private store in memory.

    Attributes:
        clock: its clock.
    """

    __test__ = False  # no test class for pytest

    def __init__(self) -> None:
        """Make a client. Only it and the clients of `async_client` see its locks."""
        self.clock = ManualClock()
        self._store = Memory(f"test-{secrets.token_hex(16)}")
        self._core = AsyncClient(self._store, runtime=ManualBlockingRuntime(self.clock))
        process.close_at_exit(self._core._engine)

    def async_client(self) -> AsyncClient:
        """Return a new asyncio client of the same store, with the same clock; to be closed by ``async with``."""
        return AsyncClient(self._store, runtime=ManualAsyncioRuntime(self.clock))

    def expire(self, hold: Hold | AsyncHold) -> None:
        """Lose a hold as if its lease had run out: its holder is notified, and its ``lock_delay`` applies.

        Args:
            hold: of this client, or of one that `async_client` made.

        Raises:
            ValueError: the hold has ended before.
        """
        if not hold.held:
            raise ValueError(f"the hold of {hold.name!r} has ended before")
        core = hold if isinstance(hold, AsyncHold) else hold._core
        scopes = [scope for lease in core._leases() for scope in lease.scopes]

        async def interrupt() -> None:
            for scope in scopes:
                scope.interrupt()

        for lease in core._leases():
            lease.mark_lost("its lease expired")
            run_sync(self.store.release(lease.name, lease.ticket, reason=ReleaseReason.BREAK, within=1.0))
        if scopes:  # a block of the calling task is cancelled by another one, as by the watchdog
            with suppress(RuntimeError):  # there is no loop here: the loss has interrupted all blocks
                core._engine.runtime.spawn(interrupt, "leasehold-expire")

    def assert_held(self, name: str) -> None:
        """Fail unless ``name`` is held: exclusively, by readers, or by users of permits."""
        held = self._held()
        assert name in held, f"{name!r} is not held; held: {', '.join(map(repr, sorted(held))) or 'nothing'}"

    def assert_free(self, name: str) -> None:
        """Fail if ``name`` is held."""
        assert (info := self._held().get(name)) is None, f"{name!r} is held: {info}"

    def _held(self) -> dict[str, LockInfo]:
        """Return what is held. Unlike `holds`, this may be called inside an event loop: it does not wait."""
        return {view.name: LockInfo.of(view) for view in run_sync(self.store.inspect("")) if view.holders}
