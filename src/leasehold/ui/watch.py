"""The look at the store that all open pages share.

Theory of operation
-------------------
1. A page opens a stream, which subscribes. The first subscriber starts the one task that looks.
2. The task looks, publishes a `Snapshot`, and sleeps: `every` seconds, or longer if looks take long, so that a large
   store costs a bounded share of a processor.
3. Each stream waits for the next snapshot, and sends what its page shows of it.
4. After the last page has closed, the task goes on for `LINGER` seconds, since a page may be on its way to the next,
   and ends. With ``record`` it goes on for ever, more slowly.

A look that fails publishes a snapshot as well: the last views, with the error, and since when.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from leasehold.observability.history import History, Holding
from leasehold.store_api import View
from leasehold.ui.shown import Row, error_text, row_of
from leasehold.ui.source import Source

LINGER = 10.0
"""Seconds for which it goes on looking after the last page was closed."""

IDLE_EVERY = 2.0
"""Seconds between two looks while no page is open, with ``record``."""

SHARE = 2.0
"""The pause after a look is at least so many times as long as the look."""


PAST_EACH = 200
"""Past holds that are kept of one name."""

PAST = 20_000
"""Past holds that are kept of all names together."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a look saw."""

    number: int = 0  # of the look
    rows: dict[str, Row] = field(default_factory=dict[str, Row])
    at: float = 0.0  # when the rows were seen: the wall clock
    took: float = 0.0  # seconds
    error: str = ""  # why the last look failed; empty if it did not
    failing_since: float = 0.0  # the wall clock


class Watch:
    """Looks at the store while a page is open."""

    def __init__(self, source: Source, *, every: float, record: bool = False) -> None:
        self._source = source
        self.history = History(names=PAST, per_name=PAST_EACH, total=PAST)
        self.every = every
        self._record = record
        self.snapshot = Snapshot()
        self._news = asyncio.Event()
        self._wake = asyncio.Event()
        self._pages = 0
        self._empty_since = 0.0
        self._task: asyncio.Task[None] | None = None
        self.looks = 0

    @contextmanager
    def subscribed(self) -> Generator[None]:
        """Look while the block runs."""
        self._pages += 1
        self.start()
        try:
            yield
        finally:
            self._pages -= 1
            self._empty_since = time.monotonic()

    def start(self) -> None:
        """Start looking, unless it does."""
        if self._task is None or self._task.done():
            self._news, self._wake = asyncio.Event(), asyncio.Event()  # of this event loop
            self._empty_since = time.monotonic()
            self._task = asyncio.get_running_loop().create_task(self._run(), name="leasehold-ui-watch")

    async def stop(self) -> None:
        """End looking."""
        task, self._task = self._task, None
        if task is not None and not task.done():
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def soon(self) -> None:
        """Look at once: something was changed."""
        self._wake.set()

    async def after(self, number: int, timeout: float) -> Snapshot:
        """Return the first snapshot after that with ``number``, or the present one after ``timeout`` seconds."""
        news = self._news
        if self.snapshot.number == number:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await news.wait()
        return self.snapshot

    async def _run(self) -> None:
        while True:
            began = time.monotonic()
            await self._look()
            took = time.monotonic() - began
            pause = max(self.every if self._pages else max(self.every, IDLE_EVERY), took * SHARE)
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            if not self._pages and not self._record and time.monotonic() - self._empty_since > LINGER:
                return

    async def _look(self) -> None:
        began, self.looks = time.monotonic(), self.looks + 1
        try:
            views = await self._source.views()
        except Exception as error:  # of whatever class: the page must say that it shows the past
            since = self.snapshot.failing_since or time.time()
            self._publish(replace(self.snapshot, error=error_text(error), failing_since=since))
            return
        now = time.time()
        self._note(views, now)
        rows = {view.name: row_of(view) for view in views}
        self._publish(Snapshot(0, rows, now, time.monotonic() - began))

    def _note(self, views: list[View], now: float) -> None:
        longest = max(4 * self.every, 2 * IDLE_EVERY, 4 * self.snapshot.took)
        holders = [
            Holding(view.name, view.kind.value, str(entry.ticket.terms.owner), entry.token or 0)
            for view in views
            for entry in view.holders
        ]
        self.history.saw(holders, now, longest_pause=longest)

    def _publish(self, snapshot: Snapshot) -> None:
        self.snapshot = replace(snapshot, number=self.snapshot.number + 1)
        news, self._news = self._news, asyncio.Event()
        news.set()
