"""A TCP proxy that injects faults between a client and a server: what a network, a kernel or a crash does, on demand.

One thread with an event loop of its own carries all connections; a verb has taken effect when it returns. Bytes are
looked at chunk by chunk, as they were sent: a client that writes a request in one go is seen request by request. A fault
may wait for the k-th occurrence of some bytes, counted over all connections from the moment when the fault was set.

Example:
    ```python
    with FaultProxy(server.port) as proxy:
        lost = proxy.drop_reply(where=b"EVALSHA")  # the next script runs, and its client never hears of it
        ...
        assert lost.hits == 1
    ```

"""

from __future__ import annotations

import asyncio
import enum
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")

RESET = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 s: closing sends RST
CHUNK = 1 << 16
QUEUE = 16  # places for connections that the kernel took and nobody accepted yet


class Side(enum.Enum):
    """A direction."""

    REQUESTS = "requests"  # from the client to the server
    REPLIES = "replies"  # from the server to the client


class Deed(enum.Enum):
    """What a fault does to the bytes that it meets."""

    DELAY = "delay"
    HOLD = "hold"
    DROP = "drop"
    DROP_REPLY = "drop reply"
    CUT = "cut"
    BLACKHOLE = "blackhole"


class Fault:
    """One fault that was set. `remove` ends it.

    Attributes:
        hits: how often it acted so far.

    """

    def __init__(
        self, proxy: FaultProxy, deed: Deed, side: Side | None, where: bytes, nth: int, seconds: float
    ) -> None:
        self.deed = deed
        self.seconds = seconds
        self.hits = 0
        self._proxy = proxy
        self._side = side
        self._where = where
        self._nth = nth
        self._seen = 0
        self._hit = threading.Event()
        self.over = asyncio.Event()

    def wait(self, timeout: float) -> bool:
        """Wait until it acted for the first time; return whether it did."""
        return self._hit.wait(timeout)

    def remove(self) -> None:
        """End it; what it held goes on its way."""
        self._remove(self)

    def meets(self, side: Side, data: bytes) -> bool:
        """Say whether it acts on this chunk, and count."""
        if (self._side is not None and side is not self._side) or self._where not in data:
            return False
        before, self._seen = self._seen, self._seen + (data.count(self._where) if self._where else 1)
        if self._nth and not before < self._nth <= self._seen:
            return False
        self.hits += 1
        self._hit.set()
        return True


class Pair:
    """One connection of a client, and ours to the server."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.deaf_to_replies = False
        self.pumps: list[asyncio.Task[None]] = []

    def close(self, *, reset: bool) -> None:
        """Close both ends; with ``reset`` the client sees "connection reset"."""
        for pump in self.pumps:
            if pump is not asyncio.current_task():
                pump.cancel()
        for link in (self.client, self.server):
            if link.fileno() >= 0:
                unwatch(link)
                if reset:
                    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                link.close()


def unwatch(link: socket.socket) -> None:
    """Let the loop forget a socket before it is closed: its number may be another's at once."""
    loop = asyncio.get_running_loop()
    loop.remove_reader(link)
    loop.remove_writer(link)


class FaultProxy:
    """Forwards a port of 127.0.0.1 to a server, faithfully until told otherwise.

    Args:
        target: a port of 127.0.0.1, a pair of host and port, or the path of a Unix socket.

    Attributes:
        port: of 127.0.0.1; it stays the same over `stop` and `start`.

    """

    def __init__(self, target: int | tuple[str, int] | str) -> None:
        self.target = ("127.0.0.1", target) if isinstance(target, int) else target
        self.port = 0
        self._listener: socket.socket | None = None
        self._stuffing: list[socket.socket] = []
        self._pairs: set[Pair] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._faults: list[Fault] = []
        self._seen = {Side.REQUESTS: bytearray(), Side.REPLIES: bytearray()}
        self._connections = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._thread.start()

    # --- life --------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Listen, on the same port as before if it was stopped."""
        self._call(self._listen)
        return self

    def stop(self) -> None:
        """Stop listening and reset all connections: the server looks dead, and connecting is refused."""
        self._call(self._stop)

    def close(self) -> None:
        """Stop for good."""
        if self._loop.is_closed():
            return
        self._call(self._stop)
        self._run(self._finish())
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
        self._call(self._heal)

    def delay(self, seconds: float, side: Side | None = None, *, where: bytes = b"", nth: int = 0) -> Fault:
        """Keep each chunk (the ``nth`` with ``where``, if given) for so long; what follows it waits behind it."""
        return self._set(Deed.DELAY, side, where, nth, seconds)

    def hold(self, side: Side = Side.REQUESTS, *, where: bytes = b"", nth: int = 0) -> Fault:
        """Keep chunks, in order, until `Fault.remove` or `heal`; connections stay open."""
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
        return self._call(lambda: self._cut_all())

    def blackhole(self) -> Fault:
        """Accept and read, and say nothing: everything is swallowed in both directions."""
        return self._set(Deed.BLACKHOLE, None, b"", 0)

    def deaf(self) -> None:
        """Accept nobody: the listening socket's queue is full, and connecting takes for ever. `heal` ends it."""
        self._call(self._stuff)

    # --- looking -----------------------------------------------------------------------------------------------

    @property
    def connections(self) -> int:
        """How many connections were accepted so far."""
        return self._call(lambda: self._connections)

    @property
    def open_connections(self) -> int:
        """How many connections are open now."""
        return self._call(lambda: len(self._pairs))

    def count(self, where: bytes, side: Side = Side.REQUESTS) -> int:
        """Return how often ``where`` was seen since the start or the last `forget`, whatever became of it."""
        return self._call(lambda: self._seen[side].count(where))

    def seen(self, side: Side = Side.REQUESTS) -> bytes:
        """Return all bytes seen since the start or the last `forget`."""
        return self._call(lambda: bytes(self._seen[side]))

    def forget(self) -> None:
        """Begin counting anew."""
        self._call(lambda: self._seen.update({side: bytearray() for side in Side}))

    # --- in the proxy's thread ---------------------------------------------------------------------------------

    def _call(self, call: Callable[[], T]) -> T:
        async def work() -> T:
            return call()

        return self._run(work())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _set(self, deed: Deed, side: Side | None, where: bytes, nth: int, seconds: float = 0.0) -> Fault:
        fault = Fault(deed, side, where, nth, seconds, lambda fault: self._call(lambda: self._remove(fault)))
        self._call(lambda: self._faults.append(fault))
        return fault

    def _remove(self, fault: Fault) -> None:
        if fault in self._faults:
            self._faults.remove(fault)
        fault.over.set()

    def _heal(self) -> None:
        for fault in tuple(self._faults):
            self._remove(fault)
        for link in self._stuffing:
            link.close()
        if self._stuffing and self._listener is not None:
            self._listener.listen(QUEUE)
            self._loop.add_reader(self._listener, self._accept)
        self._stuffing = []

    def _listen(self) -> None:
        if self._listener is not None:
            return
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", self.port))
        self._listener.listen(QUEUE)
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self._loop.add_reader(self._listener, self._accept)

    def _stop(self) -> None:
        self._heal()
        if self._listener is not None:
            unwatch(self._listener)
            self._listener.close()
            self._listener = None
        self._cut_all()

    async def _finish(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _cut_all(self) -> int:
        pairs, self._pairs = self._pairs, set()
        for pair in pairs:
            pair.close(reset=True)
        return len(pairs)

    def _stuff(self) -> None:
        if self._listener is None:
            return
        unwatch(self._listener)
        self._listener.listen(0)
        for _ in range(3):  # one fills a queue of length 0; more only ask for a place
            link = socket.socket()
            link.setblocking(False)
            link.connect_ex(("127.0.0.1", self.port))
            self._stuffing.append(link)

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _accept(self) -> None:
        if self._listener is None:
            return
        try:
            client, _ = self._listener.accept()
        except OSError:  # it went away again
            return
        client.setblocking(False)
        self._connections += 1
        self._task(self._join(client))

    async def _join(self, client: socket.socket) -> None:
        server = socket.socket(socket.AF_UNIX if isinstance(self.target, str) else socket.AF_INET)
        pair = Pair(client, server)
        self._pairs.add(pair)
        server.setblocking(False)
        try:
            await self._loop.sock_connect(server, self.target)
        except OSError:
            self._pairs.discard(pair)
            pair.close(reset=True)
            return
        for link in (client, server):
            if link.family != socket.AF_UNIX and link.fileno() >= 0:
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if pair in self._pairs:
            pair.pumps += [self._task(self._pump(pair, side)) for side in Side]

    async def _pump(self, pair: Pair, side: Side) -> None:
        source, sink = (pair.client, pair.server) if side is Side.REQUESTS else (pair.server, pair.client)
        try:
            while data := await self._loop.sock_recv(source, CHUNK):
                self._seen[side] += data
                if await self._passes(pair, side, data):
                    await self._loop.sock_sendall(sink, data)
            await self._while_held()
        except OSError:
            pass
        self._end(pair, reset=False)

    async def _passes(self, pair: Pair, side: Side, data: bytes) -> bool:
        if side is Side.REPLIES and pair.deaf_to_replies:
            self._end(pair, reset=True)
            return False
        met = [fault for fault in tuple(self._faults) if fault.meets(side, data)]
        for fault in met:
            if not await self._act(fault, pair):
                return False
        return True

    async def _act(self, fault: Fault, pair: Pair) -> bool:
        match fault.deed:
            case Deed.DELAY:
                await asyncio.sleep(fault.seconds)
            case Deed.HOLD:
                await fault.over.wait()
            case Deed.DROP | Deed.BLACKHOLE:
                return False
            case Deed.DROP_REPLY:
                pair.deaf_to_replies = True
            case Deed.CUT:
                self._end(pair, reset=True)
                return False
        return True

    async def _while_held(self) -> None:
        """Let an end of file wait, too, while nothing may pass."""
        for fault in tuple(self._faults):
            if fault.deed is Deed.BLACKHOLE:
                await fault.over.wait()

    def _end(self, pair: Pair, *, reset: bool) -> None:
        self._pairs.discard(pair)
        with suppress(OSError):
            pair.close(reset=reset)
