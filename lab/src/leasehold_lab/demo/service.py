"""One service of the demo: an HTTP server with a thread per request, as most services are.

``POST /<guard>`` reads the counter, works for a moment, writes one more back, and answers with what it read and when.
Reading and writing are two requests, so without a lock two may read the same value, and one of the two updates is lost.
With a lock the write goes through a guard, which refuses it if a newer holder has written
(`leasehold_lab.demo.counters`).

It reads its settings from the environment, since a URL may have a password and other users can see arguments. It prints
its port, and ends when its standard input ends, that is with the demo, however that ends. Then it deletes the counters,
since a killed demo cannot.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import cast

from leasehold._runtimes.clock import boottime_ns
from leasehold.client import Client
from leasehold.primitives.locks.hold import Hold
from leasehold_lab.demo.counter_stores import Counter
from leasehold_lab.demo.counters import Place, counter_at
from leasehold_lab.demo.rows import WORKS_FOR, Guard
from leasehold_lab.lifetime import end_with

STORE_URL = "LEASEHOLD_DEMO_STORE"
COUNTERS = "LEASEHOLD_DEMO_COUNTERS"
REDLOCK_URL = "LEASEHOLD_DEMO_REDLOCK"
NAMESPACE = "LEASEHOLD_DEMO_NAMESPACE"
NUMBER = "LEASEHOLD_DEMO_SERVICE"

LONGEST_WAIT = 60.0
"""The most seconds that a request waits for the lock; then it counts as failed."""

ANSWERS_WITHIN = 20.0
"""Seconds that a server of locks may take to answer: hundreds of threads want the processor at once here."""

DISCARDS_WITHIN = 3.0
"""Seconds that the server of the counters may take to forget them."""


class PageViews:
    """The work of a request, and the locks around it."""

    def __init__(self, number: int, counter: Counter, client: Client, redlock: Client | None) -> None:
        self._number = number
        self._counter = counter
        self._client = client
        self._redlock = redlock
        self._thread_lock = threading.Lock()

    def count(self, guard: Guard) -> dict[str, object]:
        """Add one to the counter of a row; return what was read, and when."""
        with self._guarded(guard) as hold:
            start = boottime_ns()
            read = self._counter.read(guard)
            time.sleep(WORKS_FOR)
            self._counter.write(guard, read + 1, hold)
            end = boottime_ns()
        token = None if hold is None else hold.token
        return {"service": self._number, "start": start, "end": end, "read": read, "token": token}

    def _guarded(self, guard: Guard) -> AbstractContextManager[Hold | None]:
        match guard:
            case Guard.NONE:
                return _nothing()
            case Guard.THREAD:
                return self._in_this_process()
            case Guard.LEASEHOLD:
                return _everywhere(self._client)
            case Guard.REDLOCK:
                if self._redlock is None:
                    raise LookupError("this service was started without Redlock")
                return _everywhere(self._redlock)

    @contextmanager
    def _in_this_process(self) -> Generator[None]:
        with self._thread_lock:
            yield None


@contextmanager
def _nothing() -> Generator[None]:
    yield None


@contextmanager
def _everywhere(client: Client) -> Generator[Hold]:
    with client.lock("page-views", timeout=LONGEST_WAIT) as hold:
        yield hold


class Server(ThreadingHTTPServer):
    """A thread per request, and room for many connections that arrive at once."""

    daemon_threads = True
    request_queue_size = 4096

    def __init__(self, views: PageViews) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.views = views


class Answer(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body go out together

    def do_POST(self) -> None:
        """Count a page view."""
        try:
            guard = Guard(self.path.removeprefix("/"))
        except ValueError:
            self._answer(HTTPStatus.NOT_FOUND, {"error": "no such row"})
            return
        try:
            self._answer(HTTPStatus.OK, cast(Server, self.server).views.count(guard))
        except Exception as error:  # whatever it was, the request failed and the demo counts it
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, {"error": f"{type(error).__name__}: {error}"})

    def _answer(self, status: HTTPStatus, body: dict[str, object]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


def main() -> None:
    """Serve until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the demo decides when services end
    end_with(os.getppid(), signal.SIGCONT)  # a stopped service would not notice the end of its input
    namespace, redlock_url = os.environ[NAMESPACE], os.environ.get(REDLOCK_URL)
    url = os.environ[STORE_URL]
    client = Client.from_url(url, namespace=namespace, response_timeout=ANSWERS_WITHIN)
    redlock = (
        Client.from_url(redlock_url, namespace=namespace, response_timeout=ANSWERS_WITHIN) if redlock_url else None
    )
    counter = counter_at(Place.read(os.environ[COUNTERS]), client, url, namespace)
    client.inspect("page-views")  # connect now, not in the first request
    counter.read(Guard.NONE)
    server = Server(PageViews(int(os.environ[NUMBER]), counter, client, redlock))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.buffer.read()
    _take_away(counter)


def _take_away(counter: Counter) -> None:
    """Discard the counters, if their server answers in time."""

    def discard() -> None:
        with suppress(Exception):  # any error of the driver: the demo is over, and no caller needs the error
            counter.discard()

    discarding = threading.Thread(target=discard, daemon=True)
    discarding.start()
    discarding.join(DISCARDS_WITHIN)


if __name__ == "__main__":
    main()
