"""The processes of ``run``: the command, forked before any thread exists and started when the lock is held.

Theory of operation
-------------------
A command that is started in a terminal's foreground stays in the process group of `run`. So Ctrl-C, Ctrl-Z and ``fg``
reach it and the rest of the pipeline from the terminal, as without `run`. Everywhere else (cron, a service, CI) it
leads a group of its own, so that one signal reaches most of what it started.

The child is forked at the very start, before any thread exists, and waits on a pipe for its environment. So it inherits
no thread, socket or lock of the store's driver. If the pipe ends without the line that starts it, the child ends.

The parent of the child is the guard, so all that the child starts descends from the guard and is found there. The guard
reports through a pipe how the child ended. It does not reap the child until `run` is done or has it kill all. So the
pid and the group stay the child's own, and no signal can hit a stranger. If the guard is killed, the kernel kills the
child, and all that the child started becomes children of `run`.
"""

from __future__ import annotations

import json
import os
import select
import signal
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from leasehold.cli.run.descendants import LOOK_AGAIN, Descendants, at_death_of, childless

NUMBER = struct.Struct("=i")
"""What the guard reports: first the child's pid, then how it ended, then `NONE_LEFT` if it was asked to kill all."""

NONE_LEFT = 1 << 30

READ_ELSEWHERE = 0.1  # seconds after which a thread that waits for a report looks whether another has read it


@dataclass(frozen=True, slots=True)
class Pipes:
    """The pipes between `run` and the child: both ends, until each side has closed those of the other."""

    wait_for: int
    go: int
    refusal: int
    refuse: int


class Child:
    """The forked child, seen from `run`; ``known`` are the children that `run` had before."""

    def __init__(self, pid: int, pipes: Pipes, reports: int, guard: int, grouped: bool, known: frozenset[int]) -> None:
        self.pid = pid
        self.grouped = grouped  # whether it leads a process group of its own
        self.reports = reports  # a pipe, readable when the guard has sent a report, or was killed
        self.unguarded = False  # whether the guard was killed
        self.none_left = False  # whether the guard was asked to kill all, and has
        self._go, self._refusal = pipes.go, pipes.refusal
        self._session = os.getsid(0)
        self._of_guard = Descendants(guard)
        self._of_run = Descendants(os.getpid(), known)  # with a killed guard, until it has passed its children on
        self._status: int | None = None
        self._may_be_reaped = False  # then its pid may be a stranger's

    def start(self, additions: Mapping[str, str]) -> OSError | None:
        """Execute the command, with ``additions`` to its environment; return the error if that failed."""
        with (
            suppress(BrokenPipeError),
            open(self._go, "wb") as go,
        ):  # it was killed while it waited: `ended` returns how
            go.write(json.dumps(additions).encode("ascii") + b"\n")
        with open(self._refusal, "rb") as refusal:
            answer = refusal.read()  # ends without a byte when exec succeeds
        return OSError(int(answer), os.strerror(int(answer))) if answer else None

    def signal(self, number: int) -> None:
        """Send a signal to the command alone."""
        with suppress(ProcessLookupError, PermissionError):
            if not self._may_be_reaped:
                os.kill(self.pid, number)

    def signal_all(self, number: int) -> None:
        """Send a signal to the command and to all processes that it started and that can be found.

        Where the command leads a group, other groups of its session are left out (those of a shell with job control, or
        of a `run`): the process that made them forwards the signal. No process forwards it to other sessions, so we do.
        """
        self._signal_group(number)
        for one in self._descendants().living():
            if one.pid != self.pid and (not self.grouped or one.session != self._session):
                one.signal(number)

    def kill_found(self) -> None:
        """Kill the command and its descendants that can be found."""
        if self.ended() is None or self.unguarded:  # else the guard may have reaped it
            self._signal_group(signal.SIGKILL)
        self._descendants().kill_found()

    def await_none_left(self) -> None:
        """Wait until the guard has killed all; if the guard was killed, kill all here."""
        while not self.none_left and not self.unguarded:
            # A signal's handler may read the report first, in another thread. Then nothing ends this `select`.
            select.select([self.reports], [], [], READ_ELSEWHERE)
            self._read_reports()
        if self.unguarded:
            self._signal_group(signal.SIGKILL)
        self._may_be_reaped = True
        while self.unguarded and not childless(self._of_run.excluded):
            ours = self._of_run.kill_found()
            if ours and not any(ours):
                break  # processes of another user
            time.sleep(LOOK_AGAIN)

    def ended(self) -> int | None:
        """Return its exit code, or minus a signal's number; None while it runs. The child is not reaped."""
        self._read_reports()
        if self._status is None and self.unguarded:
            self._status = status_of(self.pid)
        return self._status

    def reap(self) -> None:
        """Reap the child, if the guard could not."""
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def _signal_group(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            if not self._may_be_reaped:
                (os.killpg if self.grouped else os.kill)(self.pid, number)

    def _read_reports(self) -> None:
        with suppress(BlockingIOError):
            while not self.unguarded:
                data = os.read(self.reports, NUMBER.size)
                self.unguarded = not data
                if data == NUMBER.pack(NONE_LEFT):
                    self.none_left = True
                elif data:
                    (self._status,) = NUMBER.unpack(data)

    def _descendants(self) -> Descendants:
        self._read_reports()
        return self._of_run if self.unguarded else self._of_guard


def fork_child(argv: Sequence[str], pipes: Pipes, *, grouped: bool) -> int:
    """Fork the child that will become ``argv``; return its pid. To be called in its guard."""
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(pipes.go)
            os.close(pipes.refusal)
            _exec(argv, grouped, parent, pipes.wait_for, pipes.refuse)
        finally:
            os._exit(1)
    if grouped:
        with suppress(PermissionError, ProcessLookupError):
            os.setpgid(pid, pid)  # the child does the same: either may be first
    return pid


def status_of(pid: int) -> int | None:
    """Return how a child of this process ended, as `Child.ended` does; None while it runs."""
    try:
        info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # not a child: this kernel has no child subreapers
        return -signal.SIGKILL
    if info is None:
        return None
    return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status


def in_foreground() -> bool:
    """Return whether our process group is in the foreground of the terminal."""
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


def _exec(argv: Sequence[str], grouped: bool, parent: int, wait_for: int, refuse: int) -> NoReturn:
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python changed these
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else a shell's & made it ignored: it stays so
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if grouped:
        with suppress(PermissionError):
            os.setpgid(0, 0)
    at_death_of(parent, signal.SIGKILL)
    with open(wait_for, "rb") as pipe:
        additions = pipe.read()
    if not additions.endswith(b"\n"):
        os._exit(1)  # `run` died or dismissed us
    try:
        os.execvpe(argv[0], list(argv), {**os.environ, **json.loads(additions)})
    except OSError as error:
        os.write(refuse, str(error.errno).encode())
    os._exit(1)
