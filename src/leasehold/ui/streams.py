"""Server-sent events: what an open page is sent, look after look.

A stream ends after `STREAM_FOR` seconds, and the browser opens the next: so a server that shuts down waits for no page
longer than that.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Generator
from typing import Any

from starlette.responses import StreamingResponse

from leasehold.ui.watch import Snapshot, Watch

STREAM_FOR = 20.0  # seconds

REFRESH = 2.0
"""Seconds after which a page is sent what has not changed but for the time remaining; it counts down by itself."""

WAKE = 0.5
"""Seconds after which a stream looks whether the server is ending."""

RETRY = 200  # milliseconds after which a browser opens the next stream

VOLATILE = {"remaining", "free_in", "now", "at"}
"""What changes from look to look without being news."""

Payload = tuple[dict[str, Any], object]
"""What a page is sent, and what of it counts as a change."""


class Streams:
    """Makes the streams of one app."""

    def __init__(self, watch: Watch, ending: Callable[[], bool]) -> None:
        self._watch = watch
        self._ending = ending

    def response(self, payload: Callable[[Snapshot], Any]) -> StreamingResponse:
        """Return a stream of what ``payload``, an async function, makes of each snapshot."""
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(self._events(payload), media_type="text/event-stream", headers=headers)

    async def _events(self, payload: Callable[[Snapshot], Any]) -> AsyncIterator[str]:
        until, sent, last = time.monotonic() + STREAM_FOR, 0.0, None
        number = 0  # of no look yet
        with self._watch.subscribed():
            yield f"retry: {RETRY}\n\n"
            while time.monotonic() < until and not self._ending():
                snapshot = await self._watch.after(number, WAKE)
                if snapshot.number == number:
                    continue
                number = snapshot.number
                record, substance = await payload(snapshot)
                now = time.monotonic()
                if substance == last and now - sent < REFRESH:
                    continue
                sent, last = now, substance
                yield event(record)


def event(record: dict[str, Any]) -> str:
    """Return an event. Its text is ASCII without line breaks, so no name can end it."""
    return f"data: {json.dumps(record)}\n\n"


def status_of(snapshot: Snapshot, every: float) -> dict[str, Any]:
    """Return how the last look went."""
    return {
        "error": snapshot.error,
        "failing_since": snapshot.failing_since or None,
        "at": snapshot.at or None,
        "now": time.time(),
        "every": every,
    }


def substance_of(value: Any) -> str:
    """Return a value without what changes all the time: times remaining, and the time of day."""
    return json.dumps(_steady(value), sort_keys=True)


def _steady(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _steady(one) for key, one in _items(value) if key not in VOLATILE}
    if isinstance(value, list):
        return [_steady(one) for one in list[Any](value)]  # pyright: ignore[reportUnknownArgumentType]
    return value


def _items(value: Any) -> Generator[tuple[str, Any]]:
    yield from value.items()
