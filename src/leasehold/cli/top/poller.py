"""A thread that asks the store, so that keys react while it does not answer."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from leasehold import Client
from leasehold._inspection import LockInfo
from leasehold.cli.store import with_leaders
from leasehold.primitives.coordination.leadership import ELECTION

LINGER = 0.5  # seconds for which the end waits for a request that is under way; then the thread is left to itself


@dataclass(frozen=True, slots=True)
class Look:
    """The answer of the store, with the moments at which it was asked and answered."""

    infos: list[LockInfo]
    sent: float  # monotonic
    now: float  # monotonic
    wall: float  # seconds since 1970


Answer = Callable[[object], None]
"""Takes what a request returned or raised. It is called in the thread."""


class Poller:
    """Carries out one request after another, each in one thread."""

    def __init__(self, client: Client, prefix: str) -> None:
        self._client, self._prefix = client, prefix
        self._requests: queue.SimpleQueue[tuple[Callable[[], object], Answer] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="leasehold-top", daemon=True)
        self._thread.start()

    def look(self, leader_of: str | None, answer: Answer) -> None:
        """Look at all names with the prefix. ``leader_of`` is the name that is inspected: only it costs a second read.

        The value of a leader is in a cell of its own, so those of all elections would be a request each.
        """
        self._requests.put((lambda: self._look(leader_of), answer))

    def force_release(self, name: str, token: int, answer: Answer) -> None:
        """Take a lock from one holder."""
        self._requests.put((lambda: self._client.force_release(name, token), answer))

    def close(self) -> None:
        """End the thread after the request that it is in, or leave it behind if that takes long."""
        self._requests.put(None)
        self._thread.join(LINGER)

    def _run(self) -> None:
        while (request := self._requests.get()) is not None:
            ask, answer = request
            try:
                outcome = ask()
            except Exception as error:  # also a mistake of ours: the screen shows it, and goes on
                outcome = error
            answer(outcome)

    def _look(self, leader_of: str | None) -> Look:
        sent = time.monotonic()
        infos = self._client.holds(self._prefix)
        now, wall = time.monotonic(), time.time()
        for at, info in enumerate(infos):
            if info.name == leader_of:
                infos[at] = with_leaders(self._client, [info])[0]
            elif info.name.startswith(f"{ELECTION}/"):
                infos[at] = replace(info, kind=ELECTION)
        return Look(infos, sent, now, wall)
