"""The processes of the contestants, seen from the run: started once, asked for one trial after the other."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from leasehold_lab.bench.contestants import Contestant, Role
from leasehold_lab.bench.foreign import FOREIGN, Foreign
from leasehold_lab.bench.processes import worker
from leasehold_lab.bench.trials.talk import Task

STARTS_WITHIN = 60.0
"""Seconds that a worker may take to import what it measures."""

GRACE = 60.0
"""Seconds that a trial may take for connecting and ending, beside its own length."""


DRIVERS = ("redis-py", "kazoo")
"""Libraries that leasehold itself uses: they are measured as they are installed beside it."""


class TrialFailed(RuntimeError):
    """A trial came to no result; the message says why."""


class Worker:
    """One contestant's process, ended with its children at the end of the ``with`` block.

    Attributes:
        missing: why it cannot be measured; empty if it can.
        version: of its library and its interpreter, for people.

    """

    def __init__(self, contestant: Contestant, peers_python: str | None) -> None:
        self._foreign = FOREIGN.get(contestant.key)
        self._process: subprocess.Popen[bytes] | None = None
        self._seconds = 0.0
        self.version = ""
        self.missing = "" if self._foreign is None else _lacks(self._foreign, peers_python)
        if self.missing:
            return
        self._process = subprocess.Popen(
            _command(contestant, self._foreign, peers_python),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if os.environ.get("LEASEHOLD_BENCH_VERBOSE") else subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            hello = self._hear(STARTS_WITHIN)
        except TrialFailed as error:
            hello = {"missing": str(error)}
        self.missing = hello.get("missing", "")
        if not self.missing:
            self.version = f"{hello['version']} on {hello['runs']}".strip()

    def begin(self, task: Task) -> None:
        """Let a trial get ready."""
        self._seconds = task.seconds
        if self._foreign:
            self._bind(task.cores)
        self._say(asdict(task))
        self._expect("ready")

    def go(self) -> None:
        """Let it run, until it is done."""
        self._say({})
        self._expect("done")

    def outcome(self) -> dict[str, Any]:
        """Let it end; return what it found."""
        self._say({})
        found = self._expect("outcome")
        del found["step"]
        return found

    def _bind(self, cores: Sequence[int]) -> None:
        """Keep all threads of a foreign program on some cores, none for all: it does not do so itself."""
        assert self._process is not None
        if hasattr(os, "sched_setaffinity"):
            for thread in os.listdir(f"/proc/{self._process.pid}/task"):
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(int(thread), cores or os.sched_getaffinity(0))

    def _say(self, facts: dict[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(facts).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise TrialFailed("its process has ended") from None

    def _expect(self, step: str) -> dict[str, Any]:
        heard = self._hear(self._seconds + GRACE)
        if heard["step"] == "error":
            raise TrialFailed(heard["error"])
        if heard["step"] != step:
            raise TrialFailed(f"it said {heard['step']} where {step} was due")
        return heard

    def _hear(self, within: float) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        data, pipe, until = b"", self._process.stdout.fileno(), time.monotonic() + within
        while not data.endswith(b"\n"):
            if not select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
                self._end()
                raise TrialFailed(f"it did not get on within {within:g} s")
            more = os.read(pipe, 65536)
            if not more:
                raise TrialFailed("its process ended before it had answered")
            data += more
        heard: dict[str, Any] = json.loads(data)
        return heard

    def _end(self) -> None:
        assert self._process is not None
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is None:
            return
        self._end()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                pass


def _lacks(foreign: Foreign, peers_python: str | None) -> str:
    """Say why a program of another language cannot be measured; empty if it can."""
    if peers_python is None:
        return f"a library of {foreign.language}: its program belongs to an environment that --peers-python names"
    return foreign.missing(Path(peers_python).parent)


def _command(contestant: Contestant, foreign: Foreign | None, peers_python: str | None) -> list[str]:
    if foreign is not None:
        assert peers_python is not None
        return [str(foreign.program(Path(peers_python).parent.absolute()))]
    elsewhere = peers_python if contestant.role is Role.PEER and contestant.key not in DRIVERS else None
    return worker.command(elsewhere or sys.executable, contestant.module, contestant.requires, contestant.package)
