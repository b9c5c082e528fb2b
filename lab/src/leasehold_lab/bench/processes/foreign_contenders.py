"""Hand-over among processes of another language: one program for each contender, kept for later trials.

A contender works as those in `trials.handover` do: it reads and writes the same cells, in a file that all of them map
into their memory, and the same clock. The programs start one after the other, so that each has a core while it compiles
what it runs often.
"""

from __future__ import annotations

import mmap
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from leasehold_lab.bench.processes.program import GRACE, NoAnswer, Program, TrialFailed
from leasehold_lab.bench.trials import handover
from leasehold_lab.bench.trials.trial_pipe import Outcome, Task


class ForeignContenders:
    """The contending programs of one contestant."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._programs: list[Program] = []
        self._seconds = 0.0
        self._count = 0
        self._cells = handover.shared_cells(0)

    def begin(self, task: Task) -> None:
        """Let all contend, until each has had the lock or the warm-up is over."""
        self._seconds, self._count = task.seconds, task.concurrency
        with tempfile.NamedTemporaryFile(prefix="leasehold-bench-", dir=task.folder or None) as file:
            file.truncate(handover.size(task.concurrency))
            self._cells = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
            self._cells[handover.START] = self._cells[handover.UNTIL] = handover.far()
            try:
                for me in range(1, task.concurrency + 1):
                    program = self._program(me - 1)
                    program.bind(task.cores)
                    program.send(asdict(task) | {"me": me, "cells": file.name})
                    program.expect("ready", GRACE)
            except TrialFailed:
                self.close()  # those that are ready would take the next task for the start of this one
                raise
        for program in self._programs[: task.concurrency]:
            program.send({})
        handover.warm_up(self._cells, task.concurrency)

    def go(self) -> None:
        """Measure."""
        handover.measure(self._cells, self._seconds)

    def outcome(self) -> Outcome:
        """Return the sum of all counts. A contender that starves is ended, and has none."""
        until = time.monotonic() + handover.ENDS_WITHIN
        parts: list[dict[str, Any]] = []
        for program in self._programs[: self._count]:
            try:
                parts.append(program.expect("part", max(0.1, until - time.monotonic())))
            except NoAnswer:
                parts.append({})
            except TrialFailed:
                self.close()
                raise
        return handover.total(parts, self._seconds)

    def close(self) -> None:
        """End the programs."""
        for program in self._programs:
            program.close()
        self._programs.clear()

    def _program(self, index: int) -> Program:
        """Return a program that runs; the one of an earlier trial if it does."""
        if index < len(self._programs):
            if not self._programs[index].ended:
                return self._programs[index]
            self._programs[index].close()
            self._programs[index] = Program(self._command)
        else:
            self._programs.append(Program(self._command))
        if missing := self._programs[index].hello.get("missing"):
            raise TrialFailed(missing)
        return self._programs[index]
