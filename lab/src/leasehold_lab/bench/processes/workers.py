"""The contestants' processes, as the run sees them: started once, they run one trial after the other."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from leasehold_lab.bench.contestant import Contestant, Role
from leasehold_lab.bench.foreign import FOREIGN, Foreign
from leasehold_lab.bench.processes import worker
from leasehold_lab.bench.processes.foreign_contenders import ForeignContenders
from leasehold_lab.bench.processes.program import GRACE, Program
from leasehold_lab.bench.trials.trial_pipe import Task

DRIVERS = ("redis-py", "kazoo")
"""Libraries that leasehold itself uses: they are measured in the same environment."""


class Worker:
    """One contestant's process, ended with its children at the end of the ``with`` block.

    Attributes:
        missing: the reason why it cannot be measured; empty if it can.
        version: of its library and its interpreter, for people.
        program: its process; None if it is missing.

    """

    def __init__(self, contestant: Contestant, peers_python: str | None) -> None:
        self._foreign = FOREIGN.get(contestant.key)
        self._contenders: ForeignContenders | None = None
        self._contend = False
        self._seconds = 0.0
        self.version = ""
        self.program: Program | None = None
        self.missing = "" if self._foreign is None else _missing(self._foreign, peers_python)
        if self.missing:
            return
        command = _command(contestant, self._foreign, peers_python)
        self.program = Program(command)
        hello = self.program.hello
        self.missing = hello.get("missing", "")
        if not self.missing:
            self.version = f"{hello['version']} on {hello['runs']}".strip()
        if self._foreign is not None:
            self._contenders = ForeignContenders(command)

    def begin(self, task: Task) -> None:
        """Prepare a trial."""
        self._seconds = task.seconds
        self._contend = self._contenders is not None and task.trial == "handover"
        if self._contend:
            self._others.begin(task)
            return
        if self._foreign:
            self._own.bind(task.cores)
        self._own.send(asdict(task))
        self._expect("ready")

    def go(self) -> None:
        """Run the trial to its end."""
        if self._contend:
            self._others.go()
        else:
            self._own.send({})
            self._expect("done")

    def outcome(self) -> dict[str, Any]:
        """End the trial; return its outcome."""
        if self._contend:
            return asdict(self._others.outcome())
        self._own.send({})
        found = self._expect("outcome")
        del found["step"]
        return found

    def _expect(self, step: str) -> dict[str, Any]:
        return self._own.expect(step, self._seconds + GRACE)

    @property
    def _own(self) -> Program:
        assert self.program is not None, self.missing
        return self.program

    @property
    def _others(self) -> ForeignContenders:
        assert self._contenders is not None
        return self._contenders

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._contenders is not None:
            self._contenders.close()
        if self.program is not None:
            self.program.close()


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
