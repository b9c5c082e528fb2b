"""Stores for the tests of the live view, and what drives it as a user does."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Static

from leasehold import Client
from leasehold.cli.top.app import Top
from leasehold.cli.top.table import LockTable
from support.patience import until

Body = Callable[["View"], Coroutine[Any, Any, None]]


class View:
    """The screen in a test."""

    def __init__(self, app: Top, pilot: Pilot[None]) -> None:
        self.app, self.pilot = app, pilot

    @property
    def ready(self) -> bool:
        """Whether the frame is there: a busy machine may be slow to compose it."""
        return bool(self.app.screen_stack and self.app.screen_stack[0].query("#status"))

    @property
    def table(self) -> LockTable:
        return self.app.screen_stack[0].query_one(LockTable)

    @property
    def looked(self) -> float:
        """When the look was answered that is shown."""
        return self.app._last or 0.0

    @property
    def names(self) -> list[str]:
        return [row.info.name for row in self.table.rows]

    @property
    def lines(self) -> list[str]:
        """The lines of the table, as they are drawn."""
        return [self.table.render_line(y).text.rstrip() for y in range(self.table.size.height)]

    def text(self, selector: str) -> str:
        """Return the text of a part of the frame."""
        return str(self.app.screen_stack[0].query_one(selector, Static).render())

    @property
    def over(self) -> str:
        """The text of what is shown over the table."""
        return "\n".join(str(part.render()) for part in self.app.screen.query(Static))

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def type(self, text: str) -> None:
        await self.press(*({"-": "minus", ":": "colon"}.get(char, char) for char in text))

    async def call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call what blocks."""
        return await asyncio.to_thread(method, *arguments)

    async def until(self, true: Callable[[], object], within: float = 10.0) -> None:
        start = time.monotonic()
        while not true():
            assert time.monotonic() - start < within, f"not within {within} s: {self.lines}, {self.text('#status')}"
            await self.pilot.pause(0.01)


def watch(client: Client, body: Body, *, size: tuple[int, int] = (120, 24), **options: Any) -> None:
    """Run the view on a client while ``body`` uses it."""

    async def run() -> None:
        app = Top(client, **{"interval": 0.1, "where": "the store", **options})
        async with app.run_test(size=size) as pilot:
            view = View(app, pilot)
            await view.until(lambda: view.ready and (app._last is not None or app._failure))
            await body(view)

    asyncio.run(run())


@pytest.fixture(params=["memory", "sqlite", "redis"])
def client(request: pytest.FixtureRequest, tmp_path: Path, namespace: str) -> Iterator[Client]:
    urls: dict[str, Callable[[], str]] = {
        "memory": lambda: "memory:",
        "sqlite": lambda: f"sqlite:{tmp_path}/locks.db",
        "redis": lambda: request.getfixturevalue("redis_server").url,
    }
    with Client.from_url(urls[request.param](), namespace=namespace) as client:
        yield client


@pytest.fixture
def locks() -> Iterator[Client]:
    """A store in memory, for what does not depend on the store."""
    with Client.from_url("memory:") as client:
        yield client


@contextmanager
def waiting(client: Client, name: str, count: int) -> Generator[None]:
    """Have so many threads wait for a name until the end."""

    def wait() -> None:
        hold = client.lock(name, fair=True).acquire(timeout=60)
        if hold is not None:
            hold.release()

    threads = [threading.Thread(target=wait) for _ in range(count)]
    for thread in threads:
        thread.start()
    until(lambda: (info := client.inspect(name)) is not None and len(info.waiters) == count)
    yield
    for thread in threads:
        thread.join()
