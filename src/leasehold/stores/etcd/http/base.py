"""HTTP as the store uses it: addresses, requests, responses and errors; and one exchange as bytes."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import h11


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of one server. Its ``tls`` is None for a connection without TLS."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Reply:
    """A response: HTTP status and body, which may contain a token."""

    status: int
    body: bytes = field(repr=False)


@dataclass(frozen=True)
class Request:
    """A request. Its headers and body may contain a password or a token."""

    method: str
    target: str
    headers: Sequence[tuple[str, str]] = field(default=(), repr=False)
    body: bytes = field(default=b"", repr=False)


class Unsent(Exception):
    """No connection could be made: nothing of the request was sent."""


class Unanswered(Exception):
    """The request may have been carried out, but no complete response came."""


class HttpExchange:
    """The HTTP/1.1 exchanges of one connection, as bytes in and out. h11 keeps the state."""

    def __init__(self) -> None:
        self.status = 0
        self._http = h11.Connection(h11.CLIENT)
        self._parts: list[bytes] = []

    def ask(self, endpoint: Endpoint, request: Request) -> bytes:
        """Return the bytes of a request."""
        headers = [("Host", str(endpoint)), ("Content-Length", str(len(request.body))), *request.headers]
        head = h11.Request(method=request.method, target=request.target, headers=headers)
        events = [head, h11.Data(request.body), h11.EndOfMessage()]
        return b"".join(self._http.send(event) or b"" for event in events)

    def feed(self, data: bytes) -> None:
        """Parse received bytes; no bytes mean the end of the connection.

        Raises:
            EOFError: it ended before the response was complete.
        """
        self._http.receive_data(data)
        if not data and not self._complete():
            raise EOFError("it closed the connection")
        while (event := self._http.next_event()) is not h11.NEED_DATA and event is not h11.PAUSED:
            if isinstance(event, h11.Response):
                self.status = event.status_code
            elif isinstance(event, h11.Data):
                self._parts.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
                return

    def answer(self) -> Reply | None:
        """Return the response, or None if more bytes are needed."""
        return Reply(self.status, self._taken()) if self._complete() else None

    def piece(self) -> bytes:
        """Return the new bytes of a stream.

        Raises:
            EOFError: there are none, and none will follow.
        """
        data = self._taken()
        if not data and self._complete():
            raise EOFError("it ended the stream")
        return data

    def next(self) -> bool:
        """Prepare for the next exchange; return whether the connection can be used again."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    def _complete(self) -> bool:
        return self._http.their_state in (h11.DONE, h11.MUST_CLOSE, h11.CLOSED)

    def _taken(self) -> bytes:
        data, self._parts = b"".join(self._parts), []
        return data


class Stream(Protocol):
    """A response without an end, read piece by piece by one reader."""

    async def read(self, timeout: float) -> bytes:
        """Return the next bytes, or no bytes after ``timeout`` seconds without any.

        Raises:
            Unanswered: the stream has ended.
        """
        ...

    def close(self) -> None:
        """Close it, from any thread or task; a read under way ends with `Unanswered`."""
        ...


class Http(Protocol):
    """Connections to the servers of one client. A request ends before the boot-time clock shows ``until``."""

    async def ask(self, endpoint: Endpoint, request: Request, until: float, *, urgent: bool = False) -> Reply:
        """Send a request and return the response; an ``urgent`` one never waits behind others for a connection.

        Raises:
            Unsent: no connection, or none in time.
            Unanswered: no response, or none in time. The connection was closed.
        """
        ...

    async def stream(self, endpoint: Endpoint, request: Request, until: float) -> tuple[int, Stream]:
        """Send a request on a connection of its own; return the status and the stream that follows."""
        ...

    async def close(self) -> None: ...

    def after_fork(self) -> None:
        """Forget, in a forked child, the parent's connections, without sending anything on them."""
        ...
