"""The processes of ``run``: the command, forked before any thread exists and started when the lock is held.

Theory of operation
-------------------
Where the command is started from a terminal's foreground, it stays in our process group: Ctrl-C, Ctrl-Z and ``fg``
reach it and the rest of the pipeline from the terminal, as without us. Everywhere else (cron, a service, CI) it leads a
group of its own, so that all it started can be reached at once.

The child is forked at the very start, single-threaded, and waits on a pipe for its environment. So nothing that the
store's driver did (threads, sockets, locks) is in it, and a pipe that ends without the word to go ends it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

PR_SET_PDEATHSIG = 1
"""From ``linux/prctl.h``."""


@dataclass(frozen=True, slots=True)
class Child:
    """The forked child. ``grouped``: it leads a process group of its own."""

    pid: int
    grouped: bool
    go: int
    refusal: int

    def start(self, additions: Mapping[str, str]) -> OSError | None:
        """Let it become the command, with ``additions`` to its environment; return why that failed, if it did."""
        with suppress(BrokenPipeError):  # someone killed it while it waited: `ended` tells
            _write_all(self.go, json.dumps(additions).encode("ascii") + b"\n")
        os.close(self.go)
        answer = _read_all(self.refusal)  # ends without a byte when the command's image replaces ours
        os.close(self.refusal)
        return OSError(int(answer), os.strerror(int(answer))) if answer else None

    def signal(self, number: int) -> None:
        """Send a signal to the command alone."""
        with suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, number)

    def signal_all(self, number: int) -> None:
        """Send a signal to the command and all that it started and that can be found."""
        if self.grouped:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)
            return
        for pid in (self.pid, *descendants(self.pid)):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def ended(self) -> int | None:
        """Return how it ended, as an exit code or minus a signal's number; None while it runs. It is not reaped.

        Its pid, and its group's, thus stay its own until `reap`: no signal of ours can hit a stranger.
        """
        info = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if info is None:
            return None
        return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status

    def reap(self) -> None:
        """Let the system forget it."""
        os.waitpid(self.pid, 0)


def fork_child(argv: Sequence[str], *, grouped: bool) -> Child:
    """Fork the child that will become ``argv``."""
    wait_for, go = os.pipe()
    refusal, refuse = os.pipe()
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(go)
            os.close(refusal)
            _become(argv, grouped, parent, wait_for, refuse)
        finally:
            os._exit(1)
    os.close(wait_for)
    os.close(refuse)
    if grouped:
        with suppress(PermissionError, ProcessLookupError):
            os.setpgid(pid, pid)  # the child does so too: whoever is first
    return Child(pid, grouped, go, refusal)


def in_foreground() -> bool:
    """Say whether our process group is the one that the terminal listens to."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def descendants(pid: int) -> list[int]:
    """Return the processes that descend from ``pid``, as far as Linux's ``/proc`` shows them."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            parent = int(entry.read_text(errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.parent.name))
    found = list(children.get(pid, ()))
    for known in found:  # grows while it is read
        found += children.get(known, ())
    return found


def die_with(parent: int) -> None:
    """Have the kernel kill this process when ``parent`` dies, where it can (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before we asked
            os._exit(1)


def _become(argv: Sequence[str], grouped: bool, parent: int, wait_for: int, refuse: int) -> NoReturn:
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python changed these
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else a shell's & had it ignored: stays so
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if grouped:
        with suppress(PermissionError):
            os.setpgid(0, 0)
    die_with(parent)
    word = _read_all(wait_for)
    if not word.endswith(b"\n"):
        os._exit(1)  # we were not told to go
    try:
        os.execvpe(argv[0], list(argv), {**os.environ, **json.loads(word)})
    except OSError as error:
        _write_all(refuse, str(error.errno).encode())
    os._exit(1)


def _read_all(fd: int) -> bytes:
    parts: list[bytes] = []
    while part := os.read(fd, 65536):
        parts.append(part)
    return b"".join(parts)


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
