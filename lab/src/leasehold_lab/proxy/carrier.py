"""The inside of the fault proxy: what runs in its thread. It carries bytes, and asks every fault about every chunk."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from leasehold_lab.proxy.faults import Deed, Fault, Side

RESET = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 s: closing sends RST
CHUNK = 1 << 16
QUEUE = 16  # places for connections that the kernel took and nobody accepted yet
TRAILS = 1.0  # seconds, at most, that a client's goodbye stays behind a request that was held


class Pair:
    """One connection of a client, and ours to the server."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.deaf_to_replies = False
        self.torn = False  # bytes are missing in it: no connection goes on after that, so nor may this one
        self.pumps: list[asyncio.Task[None]] = []
        self.answered = asyncio.Event()  # since a request went on that had been held
        self.answered.set()

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


class Carrier:
    """Listens, connects, carries. All of it is used in the thread of its loop only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, target: tuple[str, int] | str) -> None:
        self.target = target
        self.port = 0
        self.connections = 0
        self.pairs: set[Pair] = set()
        self.faults: list[Fault] = []
        self.seen = {side: bytearray() for side in Side}
        self._loop = loop
        self._listener: socket.socket | None = None
        self._stuffing: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def remove(self, fault: Fault) -> None:
        """End a fault; what it held goes on."""
        if fault in self.faults:
            self.faults.remove(fault)
        fault.over.set()

    def heal(self) -> None:
        """End all faults, and accept connections again."""
        for fault in tuple(self.faults):
            self.remove(fault)
        for link in self._stuffing:
            link.close()
        if self._stuffing and self._listener is not None:
            self._listener.listen(QUEUE)
            self._loop.add_reader(self._listener, self._accept)
        self._stuffing = []

    def listen(self) -> None:
        """Listen, on the port of before if there was one."""
        if self._listener is not None:
            return
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", self.port))
        self._listener.listen(QUEUE)
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self._loop.add_reader(self._listener, self._accept)

    def stop(self) -> None:
        """Stop listening and reset all connections."""
        self.heal()
        if self._listener is not None:
            unwatch(self._listener)
            self._listener.close()
            self._listener = None
        self.cut_all()

    async def finish(self) -> None:
        """End all tasks."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut_all(self) -> int:
        """Reset all connections; return how many there were."""
        pairs, self.pairs = self.pairs, set()
        for pair in pairs:
            pair.close(reset=True)
        return len(pairs)

    def stuff(self) -> None:
        """Accept nobody, and fill the queue of those who wait to be accepted."""
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
        self.connections += 1
        self._task(self._join(client))

    async def _join(self, client: socket.socket) -> None:
        server = socket.socket(socket.AF_UNIX if isinstance(self.target, str) else socket.AF_INET)
        pair = Pair(client, server)
        self.pairs.add(pair)
        server.setblocking(False)
        try:
            await self._loop.sock_connect(server, self.target)
        except OSError:
            self.pairs.discard(pair)
            pair.close(reset=True)
            return
        for link in (client, server):
            if link.family != socket.AF_UNIX and link.fileno() >= 0:
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if pair in self.pairs:
            pair.pumps += [self._task(self._pump(pair, side)) for side in Side]

    async def _pump(self, pair: Pair, side: Side) -> None:
        source, sink = (pair.client, pair.server) if side is Side.REQUESTS else (pair.server, pair.client)
        try:
            while data := await self._next(pair, side, source, sink):
                if await self._passes(pair, side, data):
                    await self._loop.sock_sendall(sink, data)
            await self._while_held()
            if side is Side.REQUESTS:
                await self._trail(pair)
        except OSError:
            pass
        self._end(pair, reset=False)

    async def _next(self, pair: Pair, side: Side, source: socket.socket, sink: socket.socket) -> bytes:
        """Return the next chunk that a fault may meet, or that the sink does not take; carry all others meanwhile.

        A chunk that only passes by is carried as soon as it is there, by the loop itself: to wake a task for each, and
        to watch the socket anew, would take several times as long.
        """
        if source.fileno() < 0:  # a fault has just ended it
            raise ConnectionResetError
        found = self._loop.create_future()

        def carry() -> None:
            if found.done():  # the task is about to go on, and to read by itself
                return
            try:
                data = source.recv(CHUNK)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                found.set_exception(error)
                return
            self.seen[side] += data
            if side is Side.REPLIES:
                pair.answered.set()
            if data and not self.faults and not pair.deaf_to_replies and not pair.torn:
                try:
                    data = data[sink.send(data) :]
                except (BlockingIOError, InterruptedError):
                    pass
                except OSError as error:
                    found.set_exception(error)
                    return
                if not data:
                    return
            found.set_result(data)

        self._loop.add_reader(source, carry)
        try:
            result: bytes = await found
        finally:
            if source.fileno() >= 0:
                self._loop.remove_reader(source)
        return result

    async def _passes(self, pair: Pair, side: Side, data: bytes) -> bool:
        if side is Side.REPLIES and pair.deaf_to_replies:
            self._end(pair, reset=True)
            return False
        if pair.torn and all(fault.deed is not Deed.BLACKHOLE for fault in self.faults):
            self._end(pair, reset=True)
            return False
        met = [fault for fault in tuple(self.faults) if fault.meets(side, data)]
        for fault in met:
            if not await self._act(fault, pair):
                return False
        if side is Side.REQUESTS and any(fault.deed is Deed.HOLD for fault in met):
            pair.answered.clear()
        return True

    async def _act(self, fault: Fault, pair: Pair) -> bool:
        match fault.deed:
            case Deed.DELAY:
                await asyncio.sleep(fault.seconds)
            case Deed.HOLD:
                await fault.over.wait()
            case Deed.DROP:
                return False
            case Deed.BLACKHOLE:
                pair.torn = True
                return False
            case Deed.DROP_REPLY:
                pair.deaf_to_replies = True
            case Deed.CUT:
                self._end(pair, reset=True)
                return False
        return True

    async def _while_held(self) -> None:
        """Let an end of file wait, too, while nothing may pass."""
        for fault in tuple(self.faults):
            if fault.deed is Deed.BLACKHOLE:
                await fault.over.wait()

    async def _trail(self, pair: Pair) -> None:
        """Let an end of file stay behind a request that was held: who sees it may drop what it has not begun."""
        with suppress(TimeoutError):
            await asyncio.wait_for(pair.answered.wait(), TRAILS)

    def _end(self, pair: Pair, *, reset: bool) -> None:
        self.pairs.discard(pair)
        with suppress(OSError):
            pair.close(reset=reset)
