"""An event loop that checks whether a descriptor was closed while the loop still waits on it.

The next file that is opened gets the number of a closed descriptor. So closing a descriptor that the loop still waits
on affects another connection: its wait ends, or fails because epoll does not know the number.
"""

from __future__ import annotations

import asyncio
import os
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from leasehold._runtimes.aio import AsyncioRuntime
from leasehold_lab.runtimes.harnesses import AsyncioHarness, Harness

T = TypeVar("T")


class Watcher(selectors.DefaultSelector):
    """A selector that records registered descriptors that were closed, or that belong to another file now."""

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[int, tuple[int, int] | None] = {}
        self.stolen: list[str] = []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = super().register(fileobj, events, data)
        self.files[key.fd] = file_of(key.fd)
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        self.look()
        return super().modify(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        self.look()
        key = super().unregister(fileobj)
        self.files.pop(key.fd, None)
        return key

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.look()
        return super().select(timeout)

    def look(self) -> None:
        """Record each descriptor that was closed while it was registered."""
        for fd, file in self.files.items():
            if file_of(fd) != file:
                self.stolen.append(f"descriptor {fd} was closed while the loop waited on it")
                self.files[fd] = file_of(fd)


def file_of(fd: int) -> tuple[int, int] | None:
    """Return the identity of a descriptor's file; None if the descriptor is closed."""
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class WatchedHarness(AsyncioHarness):
    """An asyncio runtime that fails if a descriptor was closed while its loop waited on it."""

    def run(self, body: Callable[[Harness], Coroutine[Any, Any, T]]) -> T:
        """Run ``body(self)`` to its end in a watched event loop of its own."""
        self.runtime, watcher = AsyncioRuntime(), Watcher()
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(watcher)) as runner:
            result = runner.run(self._live(body))
        assert not watcher.stolen, watcher.stolen
        return result
