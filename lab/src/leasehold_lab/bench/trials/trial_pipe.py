"""The protocol between a trial and the run: ready, go, done, end, each a line of JSON, then the outcome."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Task:
    """The task of a trial.

    See `Measure`; ``subject`` is a module; ``cores`` to run on, none for all; ``profile`` to say where the time went.
    """

    subject: str
    trial: str
    mode: str
    concurrency: int
    processes: bool
    work: float
    seconds: float
    url: str
    namespace: str
    folder: str
    cores: tuple[int, ...]
    names: int = 1000
    profile: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a trial.

    Attributes:
        operations: acquires with their releases; for hand-over only those where the lock went to another contender.
        turns: acquires with their releases, all of them.
        seconds: from the start until the last of them ended.
        cpu: seconds of processor time of the client's processes.
        p50: seconds of one operation, median; for hand-over from the release to the next holder.
        p99: the same, 99th percentile.
        overlaps: how often two contenders held the lock at the same time, or the token was not newer.
        fewest: turns of the contender that had the fewest.
        most: turns of the one that had the most.
        memory: bytes of the client for one lock held, or one waiter.
        threads: of the client.
        profile: seconds of the client's processor time by part, if that was asked for.

    """

    operations: int
    turns: int
    seconds: float
    cpu: float
    p50: float
    p99: float
    overlaps: int = 0
    fewest: int = 0
    most: int = 0
    memory: float = 0.0
    threads: int = 0
    profile: dict[str, float] = field(default_factory=dict[str, float])


class TrialPipe:
    """The two pipes to the run. Each side sends only after it has received."""

    def __init__(self, listens: int, speaks: int) -> None:
        self._listens = listens
        self._speaks = speaks

    def send(self, **facts: Any) -> None:
        """Send a line."""
        data = json.dumps(facts).encode() + b"\n"
        while data:
            data = data[os.write(self._speaks, data) :]

    def receive(self) -> dict[str, Any] | None:
        """Wait for a line; None if the other side has closed the pipe."""
        data = b""
        while not data.endswith(b"\n"):
            more = os.read(self._listens, 65536)
            if not more:
                return None
            data += more
        reply: dict[str, Any] = json.loads(data)
        return reply

    def ready(self) -> None:
        """Send that the trial is ready, and wait for the start."""
        self._step("ready")

    def done(self) -> None:
        """Send that the trial is done, and wait for the confirmation."""
        self._step("done")

    def ended(self, outcome: Outcome) -> None:
        """Send the outcome."""
        self.send(step="outcome", **asdict(outcome))

    def _step(self, name: str) -> None:
        self.send(step=name)
        if self.receive() is None:
            os._exit(1)


def quantile(values: list[float], part: float) -> float:
    """Return the value below which ``part`` of the values lie; they are sorted in place. 0 if there are none."""
    values.sort()
    return values[min(len(values) - 1, int(len(values) * part))] if values else 0.0
