"""A TCP proxy that injects faults of networks, kernels and crashes between a client and a server.

One thread with its own event loop relays all connections; a method has taken effect when it returns. The proxy inspects
bytes chunk by chunk, as they were sent: if a client writes each request at once, a chunk is a request. A fault can wait
for the k-th occurrence of some bytes, counted over all connections since the fault was set.

Example:
    ```python
    with RedisServer() as server, FaultProxy(server.port) as proxy:
        with Client.from_url(f"redis://127.0.0.1:{proxy.port}") as locks:
            lost = proxy.drop_reply(where=b"EVALSHA")  # the next script runs, and its reply is lost
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
from leasehold_lab.proxy.faults import Effect, Fault, Side

__all__ = ["Fault", "FaultProxy", "Side"]

T = TypeVar("T")


class FaultProxy:
    """Forwards a port of 127.0.0.1 to a server, without faults by default.

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
        """Stop listening and reset all connections: the server seems dead, and connections are refused."""
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
        """End all faults: held bytes are relayed, and new connections accepted. Dropped bytes stay lost."""
        self._call(self._carrier.heal)

    def delay(self, seconds: float, side: Side | None = None, *, where: bytes = b"", nth: int = 0) -> Fault:
        """Delay each chunk (the ``nth`` with ``where``, if given) for that many seconds, and all chunks behind it."""
        return self._set(Effect.DELAY, side, where, nth, seconds)

    def hold(self, side: Side = Side.REQUESTS, *, where: bytes = b"", nth: int = 0) -> Fault:
        """Hold chunks, in order, until `Fault.remove` or `heal`; connections stay open.

        The server answers a held request before it sees that the client has closed the connection.
        """
        return self._set(Effect.HOLD, side, where, nth)

    def drop(self, side: Side = Side.REPLIES, *, where: bytes, nth: int = 0) -> Fault:
        """Drop chunks with ``where`` (0: all of them) and go on: for messages, which need no answer."""
        return self._set(Effect.DROP, side, where, nth)

    def drop_reply(self, nth: int = 1, *, where: bytes = b"") -> Fault:
        """Forward the ``nth`` request with ``where`` (0: each), drop the reply, and reset the client's connection."""
        return self._set(Effect.DROP_REPLY, Side.REQUESTS, where, nth)

    def cut_at(self, nth: int = 1, side: Side = Side.REQUESTS, *, where: bytes = b"") -> Fault:
        """Reset the connection instead of forwarding the ``nth`` chunk with ``where`` (0: each)."""
        return self._set(Effect.CUT, side, where, nth)

    def cut(self) -> int:
        """Reset all connections now; return how many there were."""
        return self._call(self._carrier.cut_all)

    def blackhole(self) -> Fault:
        """Accept and read, and drop everything in both directions.

        A connection that lost bytes is reset when it is used after the end of the fault: no network removes bytes from
        the middle of a stream.
        """
        return self._set(Effect.BLACKHOLE, None, b"", 0)

    def sever(self, where: bytes) -> int:
        """Close, towards the server alone, the connections on which ``where`` was sent; return how many there were.

        Their clients notice nothing: a firewall has forgotten the connection, and drops what they send.
        """
        return self._call(lambda: self._carrier.sever(where))

    def deaf(self) -> None:
        """Accept no connection: the listening socket's queue is full, so connecting blocks. `heal` ends it."""
        self._call(self._carrier.stuff)

    # --- looking -----------------------------------------------------------------------------------------------

    @property
    def connections(self) -> int:
        """The number of connections accepted so far."""
        return self._call(lambda: self._carrier.connections)

    @property
    def open_connections(self) -> int:
        """The number of open connections."""
        return self._call(lambda: len(self._carrier.pairs))

    def count(self, where: bytes, side: Side = Side.REQUESTS) -> int:
        """Return how often ``where`` was received since the start or the last `forget`, relayed or not."""
        return self._call(lambda: self._carrier.seen[side].count(where))

    def seen(self, side: Side = Side.REQUESTS) -> bytes:
        """Return all bytes received since the start or the last `forget`."""
        return self._call(lambda: bytes(self._carrier.seen[side]))

    def forget(self) -> None:
        """Restart the counts."""
        self._call(lambda: self._carrier.seen.update({side: bytearray() for side in Side}))

    def _set(self, effect: Effect, side: Side | None, where: bytes, nth: int, seconds: float = 0.0) -> Fault:
        fault = Fault(effect, side, where, nth, seconds, self._remove)
        self._call(lambda: self._carrier.faults.append(fault))
        return fault

    def _remove(self, fault: Fault) -> None:
        self._call(lambda: self._carrier.remove(fault))

    def _call(self, call: Callable[[], T]) -> T:
        if threading.current_thread() is self._thread:
            raise RuntimeError("a method of the proxy was called in its own thread, which would wait for itself")

        async def work() -> T:
            return call()

        return self._run(work())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
