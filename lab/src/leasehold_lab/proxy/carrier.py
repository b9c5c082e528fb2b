"""The event loop of the fault proxy: it relays bytes, and passes every chunk to every fault."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from leasehold_lab.proxy.faults import Effect, Fault, Side

RESET = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 s: closing sends RST
CHUNK = 1 << 16
QUEUE = 16  # length of the listening socket's queue
TRAILS = 1.0  # the most seconds for which the end of a stream is delayed after a held request


class Pair:
    """A connection of a client, and the proxy's connection to the server."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.deaf_to_replies = False
        self.torn = False  # bytes are missing: a real connection could not continue, so it is reset
        self.severed = False  # closed towards the server alone
        self.asked = bytearray()  # all that the client has sent
        self.pumps: list[asyncio.Task[None]] = []
        self.answered = asyncio.Event()  # set when the server has answered a request that was held
        self.answered.set()

    def sever(self) -> None:
        """Close the end towards the server; what the client sends from now on is dropped."""
        self.severed = True
        self.pumps[list(Side).index(Side.REPLIES)].cancel()
        unwatch(self.server)
        self.server.close()

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
    """Remove a socket from the loop before it is closed: its descriptor may be reused at once."""
    loop = asyncio.get_running_loop()
    loop.remove_reader(link)
    loop.remove_writer(link)


class Carrier:
    """Listens, connects and relays; used only in the thread of its loop."""

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
        """End a fault; the bytes that it held are relayed."""
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
        """Listen, on the same port as before if there was one."""
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

    def sever(self, where: bytes) -> int:
        """Close, towards the server alone, the connections on which ``where`` was sent; return how many there were."""
        pairs = [pair for pair in self.pairs if where in pair.asked and pair.pumps and not pair.severed]
        for pair in pairs:
            pair.sever()
        return len(pairs)

    def stuff(self) -> None:
        """Accept no connection, and fill the queue of the listening socket."""
        if self._listener is None:
            return
        unwatch(self._listener)
        self._listener.listen(0)
        for _ in range(3):  # one connection fills a queue of length 0; further ones only try
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
        except OSError:  # the client has closed it
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
        """Return the next chunk that a fault may affect, or that the sink does not accept; relay all others meanwhile.

        The loop itself relays other chunks as soon as they arrive: waking a task for each, and registering the socket
        again, would take several times as long.
        """
        if source.fileno() < 0:  # a fault has just ended it
            raise ConnectionResetError
        found = self._loop.create_future()

        def carry() -> None:
            if found.done():  # the task is about to resume and will read itself
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
            else:
                pair.asked += data
            if data and not self.faults and not pair.deaf_to_replies and not pair.torn and not pair.severed:
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
        if pair.severed:
            return False
        if side is Side.REPLIES and pair.deaf_to_replies:
            self._end(pair, reset=True)
            return False
        if pair.torn and all(fault.effect is not Effect.BLACKHOLE for fault in self.faults):
            self._end(pair, reset=True)
            return False
        met = [fault for fault in tuple(self.faults) if fault.meets(side, data)]
        for fault in met:
            if not await self._act(fault, pair):
                return False
        if side is Side.REQUESTS and any(fault.effect is Effect.HOLD for fault in met):
            pair.answered.clear()
        return True

    async def _act(self, fault: Fault, pair: Pair) -> bool:
        match fault.effect:
            case Effect.DELAY:
                await asyncio.sleep(fault.seconds)
            case Effect.HOLD:
                await fault.over.wait()
            case Effect.DROP:
                return False
            case Effect.BLACKHOLE:
                pair.torn = True
                return False
            case Effect.DROP_REPLY:
                pair.deaf_to_replies = True
            case Effect.CUT:
                self._end(pair, reset=True)
                return False
        return True

    async def _while_held(self) -> None:
        """Delay an end of file, too, while nothing may pass."""
        for fault in tuple(self.faults):
            if fault.effect is Effect.BLACKHOLE:
                await fault.over.wait()

    async def _trail(self, pair: Pair) -> None:
        """Delay an end of file after a held request: a server that sees it may drop requests that it has not begun."""
        with suppress(TimeoutError):
            await asyncio.wait_for(pair.answered.wait(), TRAILS)

    def _end(self, pair: Pair, *, reset: bool) -> None:
        self.pairs.discard(pair)
        with suppress(OSError):
            pair.close(reset=reset)
