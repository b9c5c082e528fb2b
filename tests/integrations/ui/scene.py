"""A store as a busy shop has it: for the pictures in the documentation, and for tests that need one of each."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

from leasehold import Client

FIXED = 16.0
"""Seconds of a lease that is not renewed: after half of them it is shown as in danger."""


class Waiters:
    """Threads that wait for locks until the scene ends."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []

    def add(self, url: str, namespace: str, name: str, count: int, **meta: str) -> None:
        for _ in range(count):
            thread = threading.Thread(target=self._wait, args=(url, namespace, name, dict(meta)))
            thread.start()
            self._threads.append(thread)

    def _wait(self, url: str, namespace: str, name: str, meta: dict[str, str]) -> None:
        with Client.from_url(url, namespace=namespace) as client:
            while not self._ended.is_set():
                lock = client.lock(name, timeout=0.5, fair=True, meta=meta)
                if hold := lock.acquire():
                    self._ended.wait()
                    hold.release()

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()


@contextmanager
def shop(url: str, namespace: str) -> Iterator[Client]:
    """Make the scene in a thread of its own: Playwright keeps an event loop in the test's thread."""
    with ThreadPoolExecutor(1) as pool:
        scene = _shop(url, namespace)
        client = pool.submit(scene.__enter__).result()
        try:
            yield client
        finally:
            pool.submit(scene.__exit__, None, None, None).result()


@contextmanager
def _shop(url: str, namespace: str) -> Iterator[Client]:
    """Hold one of each kind, with a queue at one of them, and a lease that is not renewed."""
    waiters = Waiters()
    with Client.from_url(url, namespace=namespace) as client, ExitStack() as stack:
        keep = stack.enter_context
        for number in range(1, 13):
            keep(client.lock(f"stock:{number * 37}", meta={"order": str(9000 + number)}))
        keep(client.lock("nightly-report", meta={"job": "report", "run": "2026-11-25"}))
        keep(client.semaphore("payment-gateway", 3).permits(2))
        keep(client.rw_lock("catalogue").reader())
        keep(client.election("scheduler", value="http://10.0.0.7:8080"))
        fixed = client.lock("import:fixed", lease=FIXED, renew=False, meta={"job": "import"}).acquire()
        stack.callback(lambda: fixed.lost or fixed.release())
        stack.callback(waiters.end)
        waiters.add(url, namespace, "nightly-report", 3, job="report")
        until = time.monotonic() + 10
        while len(getattr(client.inspect("nightly-report"), "waiters", ())) < 3:
            assert time.monotonic() < until
            time.sleep(0.02)
        yield client
