"""HTTP/1.1 on blocking sockets: a connection for each request under way, kept for the next one."""

from __future__ import annotations

import select
import socket
from collections.abc import Generator
from contextlib import contextmanager

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

IDLE_CONNECTIONS = 16
"""Connections kept open for later requests; more than these are closed after use."""


class BlockingHttp:
    """See `leasehold.stores.etcd.http.base.Http`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._forget()

    def _forget(self) -> None:
        self._idle: list[Connection] = []
        self._streams: set[Connection] = set()
        self._closed = False

    async def ask(self, place: Place, request: Request, *, within: float, urgent: bool = False) -> Reply:
        until = self._runtime.now() + within
        line = self._fresh(place) or self._connect(place, until)
        try:
            reply = line.exchange(request, until)
        except BaseException as error:
            line.close()  # an answer may still be on its way: nobody must ever read it as an answer to something else
            if isinstance(error, SILENT):
                self._drop_idle(place)  # they go to the same server, and each would cost another attempt
                raise Unanswered(reason(error)) from None
            raise
        if len(self._idle) < IDLE_CONNECTIONS and not self._closed and line.talk.next():
            self._idle.append(line)
        else:
            line.close()
        if self._closed:
            self._drop_idle()  # it may have been closed just before this line was put back
        return reply

    async def stream(self, place: Place, request: Request, *, within: float) -> tuple[int, Stream]:
        until = self._runtime.now() + within
        line = self._connect(place, until)
        self._streams.add(line)
        try:
            status = line.begin(request, until)
        except BaseException as error:
            self._ended(line)
            if isinstance(error, SILENT):
                raise Unanswered(reason(error)) from None
            raise
        return status, Pieces(self, line)

    async def close(self) -> None:
        self._closed = True
        self._drop_idle()
        for line in list(self._streams):
            line.hang_up()

    def after_fork(self) -> None:
        self._forget()  # dropped, not shut down: the parent goes on using the sockets

    def ended(self, line: Connection) -> None:
        """Close a stream's connection."""
        self._ended(line)

    def _ended(self, line: Connection) -> None:
        self._streams.discard(line)
        line.close()

    def _connect(self, place: Place, until: float) -> Connection:
        left = until - self._runtime.now()
        if self._closed:
            raise Unsent("the client is closed")
        if left <= 0:
            raise Unsent("no time was left to connect")
        try:
            plain = socket.create_connection((place.host, place.port), timeout=left)
        except OSError as error:
            raise Unsent(reason(error)) from None
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock = plain if place.tls is None else place.tls.wrap_socket(plain, server_hostname=place.host)
        except BaseException as error:
            plain.close()
            if isinstance(error, OSError | ValueError):
                raise Unsent(reason(error)) from None
            raise
        return Connection(self._runtime, place, sock)

    def _fresh(self, place: Place) -> Connection | None:
        """Take an idle connection that the server has not closed meanwhile; None if there is none."""
        while True:
            line = next((idle for idle in reversed(self._idle) if idle.place is place), None)
            if line is None:
                return None
            try:
                self._idle.remove(line)
            except ValueError:  # another thread was faster
                continue
            if line.quiet():
                return line
            line.close()

    def _drop_idle(self, place: Place | None = None) -> None:
        for line in list(self._idle):
            if place is None or line.place is place:
                try:
                    self._idle.remove(line)
                except ValueError:  # another thread has it, and closes it
                    continue
                line.close()


class Connection:
    """One connection, used by one thread; any thread may close it.

    If another thread waits on it then, it is only shut down, and that thread closes it: the number of a closed
    descriptor may be a stranger's at once.
    """

    def __init__(self, runtime: Runtime, place: Place, sock: socket.socket) -> None:
        self.place = place
        self.talk = Talk()
        self._runtime = runtime
        self._socket = sock
        self._kept = b""
        self._mutex = runtime.mutex()
        self._waits = self._closed = False

    def exchange(self, request: Request, until: float) -> Reply:
        """Send a request, and read the answer before ``until``."""
        self._send(request, until)
        while (reply := self.talk.answer()) is None:
            self._read(until)
        return reply

    def begin(self, request: Request, until: float) -> int:
        """Send a request, and read the status of an answer that goes on."""
        self._send(request, until)
        while True:
            status, data, _ = self.talk.piece()
            if status:
                self._kept = data
                return status
            self._read(until)

    def piece(self, timeout: float) -> bytes:
        """Return the next piece of an answer that goes on; nothing after ``timeout`` seconds."""
        kept, self._kept = self._kept, b""
        until = self._runtime.now() + timeout
        while not kept:
            try:
                self._read(until)
            except TimeoutError:
                return b""
            _, kept, over = self.talk.piece()
            if over and not kept:
                raise EOFError("it ended the answer")
        return kept

    def quiet(self) -> bool:
        """Say whether nothing came unasked: bytes or an end of file mean that it is of no more use."""
        poll = select.poll()  # not select(), which cannot wait for descriptors above 1,023
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def hang_up(self) -> None:
        """End a read of another thread."""
        with self._mutex:
            self._hang_up()

    def _hang_up(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:  # it has ended already
            pass

    def close(self) -> None:
        """Close the connection; a read under way ends."""
        with self._mutex:
            self._closed = True
            if self._waits:
                self._hang_up()
            else:
                self._socket.close()

    @contextmanager
    def _waiting(self) -> Generator[None]:
        """Own the descriptor for as long as this thread waits on it."""
        with self._mutex:
            if self._closed:
                raise EOFError("the connection is closed")
            self._waits = True
        try:
            yield
        finally:
            with self._mutex:
                self._waits = False
                if self._closed:
                    self._socket.close()

    def _send(self, request: Request, until: float) -> None:
        data = self.talk.ask(self.place, request)
        with self._waiting():
            self._socket.settimeout(max(until - self._runtime.now(), 0.001))
            self._socket.sendall(data)

    def _read(self, until: float) -> None:
        left = until - self._runtime.now()
        if left <= 0:
            raise TimeoutError("it answered too slowly")
        with self._waiting():
            self._socket.settimeout(left)
            data = self._socket.recv(CHUNK)
        self.talk.feed(data)


class Pieces:
    """See `leasehold.stores.etcd.http.base.Stream`."""

    def __init__(self, http: BlockingHttp, line: Connection) -> None:
        self._http = http
        self._line = line

    async def read(self, timeout: float) -> bytes:
        try:
            return self._line.piece(timeout)
        except BaseException as error:
            self._http.ended(self._line)
            if isinstance(error, SILENT):
                raise Unanswered(reason(error)) from None
            raise

    def close(self) -> None:
        self._http.ended(self._line)
