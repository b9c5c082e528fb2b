"""A TCP proxy that injects faults between a client and a server: what a network, a kernel or a crash does, on demand.

One thread with an event loop of its own carries all connections; a verb has taken effect when it returns. Bytes are
looked at chunk by chunk, as they were sent: a client that writes a request in one go is seen request by request. A
fault may wait for the k-th occurrence of some bytes, counted over all connections from when the fault was set.

Example:
    ```python
    with RedisServer() as server, FaultProxy(server.port) as proxy:
        with Client.from_url(f"redis://127.0.0.1:{proxy.port}") as locks:
            lost = proxy.drop_reply(where=b"EVALSHA")  # the next script runs, and its client never hears of it
            locks.lock("stock:42").acquire()
            assert lost.hits == 1
    ```

"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from leasehold_lab.proxy.carrier import Carrier
from leasehold_lab.proxy.faults import Deed, Fault, Side

__all__ = ["Fault", "FaultProxy", "Side"]

T = TypeVar("T")


class FaultProxy:
    """Forwards a port of 127.0.0.1 to a server, faithfully until told otherwise.

    Args:
        target: a port of 127.0.0.1, a pair of host and port, or the path of a Unix socket.

    """

    def __init__(self, target: int | tuple[str, int] | str) -> None:
        self._loop = asyncio.new_event_loop()
        self._carrier = Carrier(self._loop, ("127.0.0.1", target) if isinstance(target, int) else target)
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port of 127.0.0.1 to connect to; it stays the same over `stop` and `start`."""
        return self._carrier.port

    # --- life --------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Listen, on the same port as before if it was stopped."""
        self._call(self._carrier.listen)
        return self

    def stop(self) -> None:
        """Stop listening and reset all connections: the server looks dead, and connecting is refused."""
        self._call(self._carrier.stop)

    def close(self) -> None:
        """Stop for good."""
        if self._loop.is_closed():
            return
        self._call(self._carrier.stop)
        self._run(self._carrier.finish())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- faults ------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """End all faults: what was held goes on, new connections are accepted. What was dropped stays lost."""
        self._call(self._carrier.heal)

    def delay(self, seconds: float, side: Side | None = None, *, where: bytes = b"", nth: int = 0) -> Fault:
        """Keep each chunk (the ``nth`` with ``where``, if given) for so long; what follows it waits behind it."""
        return self._set(Deed.DELAY, side, where, nth, seconds)

    def hold(self, side: Side = Side.REQUESTS, *, where: bytes = b"", nth: int = 0) -> Fault:
        """Keep chunks, in order, until `Fault.remove` or `heal`; connections stay open.

        A request so kept is answered before the server sees that its client has given up and closed the connection.
        """
        return self._set(Deed.HOLD, side, where, nth)

    def drop(self, side: Side = Side.REPLIES, *, where: bytes, nth: int = 0) -> Fault:
        """Throw away chunks with ``where`` (0: all of them) and go on: for messages, which nobody waits for."""
        return self._set(Deed.DROP, side, where, nth)

    def drop_reply(self, nth: int = 1, *, where: bytes = b"") -> Fault:
        """Forward the ``nth`` request with ``where`` (0: each), swallow what comes back, and cut the client's side."""
        return self._set(Deed.DROP_REPLY, Side.REQUESTS, where, nth)

    def cut_at(self, nth: int = 1, side: Side = Side.REQUESTS, *, where: bytes = b"") -> Fault:
        """Reset the connection instead of forwarding the ``nth`` chunk with ``where`` (0: each)."""
        return self._set(Deed.CUT, side, where, nth)

    def cut(self) -> int:
        """Reset all connections now; return how many there were."""
        return self._call(self._carrier.cut_all)

    def blackhole(self) -> Fault:
        """Accept and read, and say nothing: everything is swallowed in both directions.

        A connection that lost bytes so is reset when it is used after the fault has ended: no network takes bytes out
        of the middle of a stream and lets it go on.
        """
        return self._set(Deed.BLACKHOLE, None, b"", 0)

    def deaf(self) -> None:
        """Accept nobody: the listening socket's queue is full, and connecting takes for ever. `heal` ends it."""
        self._call(self._carrier.stuff)

    # --- looking -----------------------------------------------------------------------------------------------

    @property
    def connections(self) -> int:
        """How many connections were accepted so far."""
        return self._call(lambda: self._carrier.connections)

    @property
    def open_connections(self) -> int:
        """How many connections are open now."""
        return self._call(lambda: len(self._carrier.pairs))

    def count(self, where: bytes, side: Side = Side.REQUESTS) -> int:
        """Return how often ``where`` was seen since the start or the last `forget`, whatever became of it."""
        return self._call(lambda: self._carrier.seen[side].count(where))

    def seen(self, side: Side = Side.REQUESTS) -> bytes:
        """Return all bytes seen since the start or the last `forget`."""
        return self._call(lambda: bytes(self._carrier.seen[side]))

    def forget(self) -> None:
        """Begin counting anew."""
        self._call(lambda: self._carrier.seen.update({side: bytearray() for side in Side}))

    def _set(self, deed: Deed, side: Side | None, where: bytes, nth: int, seconds: float = 0.0) -> Fault:
        fault = Fault(deed, side, where, nth, seconds, self._remove)
        self._call(lambda: self._carrier.faults.append(fault))
        return fault

    def _remove(self, fault: Fault) -> None:
        self._call(lambda: self._carrier.remove(fault))

    def _call(self, call: Callable[[], T]) -> T:
        if threading.current_thread() is self._thread:
            raise RuntimeError("a verb of the proxy is used in its own thread, which would wait for itself")

        async def work() -> T:
            return call()

        return self._run(work())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
