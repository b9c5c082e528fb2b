"""Programs of tests that run as child processes and write down, in a journal, what they do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.patience import until

PATIENCE = 40.0
"""Seconds in which something happens, on a machine that is busy."""

Entry = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Journal:
    """A file to which programs append a line for each thing they do."""

    path: Path

    def entries(self, what: str = "", **facts: Any) -> list[Entry]:
        """Return the entries of one kind and with these facts, in the order in which they were written."""
        if not self.path.exists():
            return []
        lines = self.path.read_text().splitlines()
        found: list[Entry] = [json.loads(line) for line in lines if line.endswith("}")]
        return [each for each in found if what in ("", each["what"]) and facts.items() <= each.items()]

    def until(self, count: int, what: str, within: float = PATIENCE, **facts: Any) -> list[Entry]:
        """Wait until there are so many entries."""
        try:
            until(lambda: len(self.entries(what, **facts)) >= count, within=within)
        except AssertionError:
            raise AssertionError(f"{count} of {what} {facts} did not come: {self.entries()}") from None
        return self.entries(what, **facts)


def note(what: str, **facts: Any) -> None:
    """Append an entry; for the programs, which get the path of the journal in their environment."""
    line = json.dumps({"what": what, "pid": os.getpid(), **facts}) + "\n"
    descriptor = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())  # one write to the end of the file: lines of processes do not mix
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Worker:
    """A program that runs, with all that it started."""

    process: subprocess.Popen[bytes]
    log: Path

    def kill(self) -> None:
        """Kill it, and all that it started, though it be in a process group of its own."""
        for pid in self.pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:  # it has ended
                pass
        self.process.wait()

    def pids(self) -> list[int]:
        """Return the processes of its session."""
        found = list[int]()
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                session = int(path.read_text().rpartition(")")[2].split()[3])
            except OSError:  # it has ended
                continue
            if session == self.process.pid:
                found.append(int(path.parent.name))
        return found

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ask it to end, and return its exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def said(self) -> str:
        return self.log.read_text(errors="replace")


@contextmanager
def working(
    *command: str, folder: Path, name: str = "worker", python: str = "", path: Path | None = None, **environment: str
) -> Iterator[Worker]:
    """Run a module or a file of Python; it is killed with all that it started, whatever happens.

    Args:
        command: what follows ``python``.
        folder: for its log, and where it runs.
        name: of the log.
        python: of another environment.
        path: where it finds modules of its own.
        environment: variables.
    """
    log = folder / f"{name}.log"
    places = [*([path] if path else []), Path(__file__).parents[1]]
    environment["PYTHONPATH"] = os.pathsep.join([*map(str, places), *filter(None, [os.environ.get("PYTHONPATH")])])
    with log.open("ab") as output:
        process = subprocess.Popen(
            [python or sys.executable, *command],
            cwd=folder,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # its process group has all that it starts
        )
    worker = Worker(process, log)
    try:
        yield worker
    finally:
        worker.kill()
