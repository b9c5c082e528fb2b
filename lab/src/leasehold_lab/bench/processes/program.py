"""A process of a contestant: lines of JSON in both directions, and its end with all its children."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from leasehold_lab.lifetime import tied_to_this_process

STARTS_WITHIN = 60.0
"""Seconds that a program may take to import its library."""

GRACE = 60.0
"""Seconds that a trial may take to connect and to end, in addition to its own length."""


class TrialFailed(RuntimeError):
    """A trial had no result; the message has the reason."""


class NoAnswer(TrialFailed):
    """A process sent nothing in time."""


class Program:
    """One process.

    Attributes:
        hello: what it sent first; ``missing`` is there if it cannot be measured.

    """

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            tied_to_this_process(list(command)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if os.environ.get("LEASEHOLD_BENCH_VERBOSE") else subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            self.hello = self.receive(STARTS_WITHIN)
        except TrialFailed as error:
            self.hello = {"missing": str(error)}

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def bind(self, cores: Sequence[int]) -> None:
        """Pin all its threads, where a program does not pin itself; no cores mean all."""
        if hasattr(os, "sched_setaffinity"):
            for thread in os.listdir(f"/proc/{self.pid}/task"):
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(int(thread), cores or os.sched_getaffinity(0))

    def send(self, facts: dict[str, Any]) -> None:
        """Send a line."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(facts).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise TrialFailed("its process has ended") from None

    def expect(self, step: str, within: float) -> dict[str, Any]:
        """Wait for a line of this step.

        Raises:
            TrialFailed: it sent an error, another step, or nothing.

        """
        reply = self.receive(within)
        if reply["step"] == "error":
            raise TrialFailed(reply["error"])
        if reply["step"] != step:
            raise TrialFailed(f"its process sent {reply['step']} instead of {step}")
        return reply

    def receive(self, within: float) -> dict[str, Any]:
        """Wait for a line; a process that sends none is ended."""
        assert self._process.stdout is not None
        data, pipe, until = b"", self._process.stdout.fileno(), time.monotonic() + within
        while not data.endswith(b"\n"):
            if not select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
                self.kill()
                raise NoAnswer(f"its process sent nothing within {within:g} s")
            more = os.read(pipe, 65536)
            if not more:
                raise TrialFailed("its process ended before it had answered")
            data += more
        reply: dict[str, Any] = json.loads(data)
        return reply

    def kill(self) -> None:
        """Kill it, and its children."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill it, wait for its end, and close the pipes."""
        self.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
