"""The contestants' processes, as the run sees them: started once, they run one trial after the other."""

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
from leasehold_lab.bench.trials.trial_pipe import Task
from leasehold_lab.lifetime import tied_to_this_process

STARTS_WITHIN = 60.0
"""Seconds that a worker may take to import its library."""

GRACE = 60.0
"""Seconds that a trial may take to connect and to end, in addition to its own length."""


DRIVERS = ("redis-py", "kazoo")
"""Libraries that leasehold itself uses: they are measured in the same environment."""


class TrialFailed(RuntimeError):
    """A trial had no result; the message has the reason."""


class Worker:
    """One contestant's process, ended with its children at the end of the ``with`` block.

    Attributes:
        missing: the reason why it cannot be measured; empty if it can.
        version: of its library and its interpreter, for people.

    """

    def __init__(self, contestant: Contestant, peers_python: str | None) -> None:
        self._foreign = FOREIGN.get(contestant.key)
        self._process: subprocess.Popen[bytes] | None = None
        self._seconds = 0.0
        self.version = ""
        self.missing = "" if self._foreign is None else _missing(self._foreign, peers_python)
        if self.missing:
            return
        self._process = subprocess.Popen(
            tied_to_this_process(_command(contestant, self._foreign, peers_python)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if os.environ.get("LEASEHOLD_BENCH_VERBOSE") else subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            hello = self._receive(STARTS_WITHIN)
        except TrialFailed as error:
            hello = {"missing": str(error)}
        self.missing = hello.get("missing", "")
        if not self.missing:
            self.version = f"{hello['version']} on {hello['runs']}".strip()

    def begin(self, task: Task) -> None:
        """Prepare a trial."""
        self._seconds = task.seconds
        if self._foreign:
            self._bind(task.cores)
        self._send(asdict(task))
        self._expect("ready")

    def go(self) -> None:
        """Run the trial to its end."""
        self._send({})
        self._expect("done")

    def outcome(self) -> dict[str, Any]:
        """End the trial; return its outcome."""
        self._send({})
        found = self._expect("outcome")
        del found["step"]
        return found

    def _bind(self, cores: Sequence[int]) -> None:
        """Pin all threads of a foreign program, which does not pin itself; no cores mean all."""
        assert self._process is not None
        if hasattr(os, "sched_setaffinity"):
            for thread in os.listdir(f"/proc/{self._process.pid}/task"):
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(int(thread), cores or os.sched_getaffinity(0))

    def _send(self, facts: dict[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(facts).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise TrialFailed("its process has ended") from None

    def _expect(self, step: str) -> dict[str, Any]:
        reply = self._receive(self._seconds + GRACE)
        if reply["step"] == "error":
            raise TrialFailed(reply["error"])
        if reply["step"] != step:
            raise TrialFailed(f"its process sent {reply['step']} instead of {step}")
        return reply

    def _receive(self, within: float) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        data, pipe, until = b"", self._process.stdout.fileno(), time.monotonic() + within
        while not data.endswith(b"\n"):
            if not select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
                self._end()
                raise TrialFailed(f"its process sent nothing within {within:g} s")
            more = os.read(pipe, 65536)
            if not more:
                raise TrialFailed("its process ended before it had answered")
            data += more
        reply: dict[str, Any] = json.loads(data)
        return reply

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


def _missing(foreign: Foreign, peers_python: str | None) -> str:
    """Return the reason why a program of another language cannot be measured; empty if it can."""
    if peers_python is None:
        return f"a library of {foreign.language}: its program belongs to an environment that --peers-python names"
    return foreign.missing(Path(peers_python).parent)


def _command(contestant: Contestant, foreign: Foreign | None, peers_python: str | None) -> list[str]:
    if foreign is not None:
        assert peers_python is not None
        return [str(foreign.program(Path(peers_python).parent.absolute()))]
    elsewhere = peers_python if contestant.role is Role.PEER and contestant.key not in DRIVERS else None
    return worker.command(elsewhere or sys.executable, contestant.module, contestant.requires, contestant.package)
