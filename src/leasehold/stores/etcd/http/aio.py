"""HTTP/1.1 on asyncio streams: a connection for each request under way, kept for the next one, and not too many."""

from __future__ import annotations

import asyncio
import ssl

from leasehold._runtimes.base import Runtime
from leasehold.stores.etcd.http.base import (
    CHUNK,
    SILENT,
    Place,
    Reply,
    Request,
    Stream,
    Talk,
    Unanswered,
    Unsent,
    reason,
)

CONNECTIONS = 16
"""Requests under way at the same time; more of them wait, but for the urgent ones."""


class AioHttp:
    """See `leasehold.stores.etcd.http.base.Http`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._inherited: list[object] = []
        self._forget()

    def _forget(self) -> None:
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._room: asyncio.Semaphore | None = None
        self._closed = False

    async def ask(self, place: Place, request: Request, *, within: float, urgent: bool = False) -> Reply:
        if urgent:
            return await self._ask(place, request, within)
        until = self._runtime.now() + within
        if self._room is None:
            self._room = asyncio.Semaphore(CONNECTIONS)
        room = self._room
        try:
            async with asyncio.timeout(within):
                await room.acquire()
        except TimeoutError:
            raise Unsent("too many requests of this client are under way") from None
        try:
            return await self._ask(place, request, until - self._runtime.now())
        finally:
            room.release()

    async def _ask(self, place: Place, request: Request, within: float) -> Reply:
        until = self._runtime.now() + within
        line = self._fresh(place) or await self._connect(place, within)
        try:
            async with asyncio.timeout(until - self._runtime.now()):
                reply = await line.exchange(request)
        except BaseException as error:
            self._ended(line)  # an answer may still be on its way: nobody must ever read it as one to something else
            if isinstance(error, SILENT):
                self._drop_idle(place)
                raise Unanswered(reason(error)) from None
            raise
        if not self._closed and len(self._idle) < CONNECTIONS and line.talk.next():
            self._idle.append(line)
        else:
            self._ended(line)
        return reply

    async def stream(self, place: Place, request: Request, *, within: float) -> tuple[int, Stream]:
        until = self._runtime.now() + within
        line = await self._connect(place, within)
        try:
            async with asyncio.timeout(until - self._runtime.now()):
                status = await line.begin(request)
        except BaseException as error:
            self._ended(line)
            if isinstance(error, SILENT):
                raise Unanswered(reason(error)) from None
            raise
        return status, Pieces(self, line)

    async def close(self) -> None:
        self._closed = True
        for line in list(self._open):
            self._ended(line)
        self._idle.clear()
        await asyncio.sleep(0)  # the transports close their sockets in the next turn of the loop

    def after_fork(self) -> None:
        self._inherited.append(self._open)  # closing them, as finalizers do, would make the parent's loop deaf to them
        self._forget()

    def ended(self, line: Connection) -> None:
        """Close a stream's connection."""
        self._ended(line)

    def _ended(self, line: Connection) -> None:
        self._open.discard(line)
        line.close()

    async def _connect(self, place: Place, within: float) -> Connection:
        if self._closed:
            raise Unsent("the client is closed")
        try:
            async with asyncio.timeout(within):
                reader, writer = await asyncio.open_connection(
                    place.host, place.port, ssl=place.tls, server_hostname=place.host if place.tls else None
                )
        except (OSError, ssl.SSLError, ValueError) as error:
            raise Unsent(reason(error)) from None
        line = Connection(place, reader, writer)
        if self._closed:  # meanwhile
            line.close()
            raise Unsent("the client is closed")
        self._open.add(line)
        return line

    def _fresh(self, place: Place) -> Connection | None:
        """Take an idle connection that the server has not closed meanwhile; None if there is none."""
        loop = asyncio.get_running_loop()
        for line in reversed(self._idle.copy()):
            if line.place is not place or line.loop is not loop:
                continue
            self._idle.remove(line)
            if line.usable():
                return line
            self._ended(line)
        return None

    def _drop_idle(self, place: Place) -> None:
        """Close what goes to the same server: each would cost another attempt."""
        for line in self._idle.copy():
            if line.place is place:
                self._idle.remove(line)
                self._ended(line)


class Connection:
    """One connection."""

    def __init__(self, place: Place, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.loop = asyncio.get_running_loop()
        self.place = place
        self.talk = Talk()
        self._reader = reader
        self._writer = writer
        self._kept = b""

    async def exchange(self, request: Request) -> Reply:
        """Send a request and read the answer."""
        self._writer.write(self.talk.ask(self.place, request))
        while (reply := self.talk.answer()) is None:
            self.talk.feed(await self._reader.read(CHUNK))
        return reply

    async def begin(self, request: Request) -> int:
        """Send a request, and read the status of an answer that goes on."""
        self._writer.write(self.talk.ask(self.place, request))
        while True:
            status, data, _ = self.talk.piece()
            if status:
                self._kept = data
                return status
            self.talk.feed(await self._reader.read(CHUNK))

    async def piece(self, timeout: float) -> bytes:
        """Return the next piece of an answer that goes on; nothing after ``timeout`` seconds."""
        kept, self._kept = self._kept, b""
        while not kept:
            try:
                async with asyncio.timeout(timeout):
                    data = await self._reader.read(CHUNK)
            except TimeoutError:
                return b""
            self.talk.feed(data)
            _, kept, over = self.talk.piece()
            if over and not kept:
                raise EOFError("it ended the answer")
        return kept

    def usable(self) -> bool:
        """Say whether the server has not closed it."""
        return not self._reader.at_eof() and not self._writer.is_closing() and self._reader.exception() is None

    def close(self) -> None:
        """Close the connection at once."""
        if not self.loop.is_closed():
            self._writer.transport.abort()


class Pieces:
    """See `leasehold.stores.etcd.http.base.Stream`."""

    def __init__(self, http: AioHttp, line: Connection) -> None:
        self._http = http
        self._line = line

    async def read(self, timeout: float) -> bytes:
        try:
            return await self._line.piece(timeout)
        except BaseException as error:
            self._http.ended(self._line)
            if isinstance(error, SILENT):
                raise Unanswered(reason(error)) from None
            raise

    def close(self) -> None:
        self._http.ended(self._line)
