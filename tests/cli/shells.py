"""The real command in processes of its own, for the tests of the command line."""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from support.patience import until

NOISE = 0.2
"""Seconds that a busy machine may add to what the protocol bounds."""

SLACK = 1.0
"""Seconds allowed for starting an interpreter on a busy machine."""

ON_TERMINAL = (
    sys.executable,
    "-c",
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])",
)
"""Makes standard input the terminal of a new session, and becomes the command that follows."""


def runner() -> CliRunner:
    """Return what runs the command in this process. Before click 8.2 it is told to keep standard error apart."""
    apart: dict[str, Any] = {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}
    return CliRunner(**apart)


def alive(pid: int) -> bool:
    """Say whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter if it ends while it is read
        return False


class Shell:
    """Starts the real command in processes of its own, and ends what a test left."""

    def __init__(self, url: str, folder: Path, namespace: str = "default") -> None:
        self.url = url
        self.folder = folder
        self.namespace = namespace
        self.started: list[subprocess.Popen[str]] = []
        self.env = {**os.environ, "LEASEHOLD_URL": url, "LEASEHOLD_NAMESPACE": namespace}

    def start(self, *arguments: str, wrap: tuple[str, ...] = (), **options: Any) -> subprocess.Popen[str]:
        defaults: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        command = [*wrap, sys.executable, "-m", "leasehold", *arguments]
        process = subprocess.Popen(command, cwd=self.folder, env=self.env, **{**defaults, **options})
        self.started.append(process)
        return process

    def call(self, *arguments: str, within: float = 20.0) -> tuple[int, str, str]:
        process = self.start(*arguments, stdin=subprocess.DEVNULL)
        out, err = process.communicate(timeout=within)
        return process.returncode, out, err

    def json(self, *arguments: str) -> Any:
        return json.loads(self.call(*arguments, "--json")[1])

    def file(self, name: str, within: float = 10.0) -> str:
        """Wait until a file has a whole line; return the text without white space at its ends."""
        path = self.folder / name
        until(lambda: path.exists() and path.read_text().endswith("\n"), within)
        return path.read_text().strip()

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGCONT)
                process.kill()
            process.wait(5)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
