"""The processes of ``run``: the command, forked before any thread exists and started when the lock is held.

Theory of operation
-------------------
Where the command is started from a terminal's foreground, it stays in our process group: Ctrl-C, Ctrl-Z and ``fg``
reach it and the rest of the pipeline from the terminal, as without us. Everywhere else (cron, a service, CI) it leads a
group of its own, so that most of what it started can be reached at once.

The child is forked at the very start, single-threaded, and waits on a pipe for its environment. So nothing that the
store's driver did (threads, sockets, locks) is in it, and a pipe that ends without the word to go ends it.

Its parent is the `guard`, so that all that it starts descends from the guard and is found there. The guard tells us by
a pipe how the child ended, and keeps it unreaped until we are done, or have it kill all: its pid, and its group's, stay
its own, and no signal of ours can hit a stranger. If the guard is killed, the kernel kills the child, and all that it
started becomes ours.
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

from leasehold.cli.run.descendants import LOOK_AGAIN, Descendants, at_death_of

NUMBER = struct.Struct("=i")
"""What the guard tells: the child's pid at first, then how it ended, then `NONE_LEFT` if all were to be killed."""

NONE_LEFT = 1 << 30


@dataclass(frozen=True, slots=True)
class Pipes:
    """What we and the child tell each other by: both ends, until each side has closed those of the other."""

    wait_for: int
    go: int
    refusal: int
    refuse: int

    @classmethod
    def open(cls) -> Pipes:
        """Make them."""
        return cls(*os.pipe(), *os.pipe())


class Child:
    """The forked child, seen from `run`.

    Attributes:
        grouped: it leads a process group of its own.
        tidings: readable when there is news of the child, or the guard was killed.
        unguarded: the guard was killed.
        none_left: the guard was to kill all, and has.

    """

    def __init__(self, pid: int, pipes: Pipes, tidings: int, guard: int, grouped: bool, known: frozenset[int]) -> None:
        """Args: ``known``, the children that we had before."""
        self.pid = pid
        self.grouped = grouped
        self.tidings = tidings
        self.unguarded = False
        self.none_left = False
        self._go, self._refusal = pipes.go, pipes.refusal
        self._session = os.getsid(0)
        self._below_guard = Descendants(guard)
        self._below_us = Descendants(os.getpid(), known | {guard})
        self._status: int | None = None

    def start(self, additions: Mapping[str, str]) -> OSError | None:
        """Let it become the command, with ``additions`` to its environment; return why that failed, if it did."""
        with suppress(BrokenPipeError):  # someone killed it while it waited: `ended` tells
            _write_all(self._go, json.dumps(additions).encode("ascii") + b"\n")
        os.close(self._go)
        answer = _read_all(self._refusal)  # ends without a byte when the command's image replaces ours
        os.close(self._refusal)
        return OSError(int(answer), os.strerror(int(answer))) if answer else None

    def signal(self, number: int) -> None:
        """Send a signal to the command alone."""
        with suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, number)

    def signal_all(self, number: int) -> None:
        """Send a signal to the command and all that it started and that can be found.

        Where the command leads a group, other groups of its session are left out (those of a shell with job control, or
        of a `run`): it is for their makers to pass the signal on. Nobody passes it to other sessions, so we do.
        """
        self._signal_group(number)
        for one in self._descendants().living():
            if one.pid != self.pid and (not self.grouped or one.session != self._session):
                one.signal(number)

    def kill_found(self) -> bool:
        """Kill what can be found of the command and all that it started; say whether there was anybody."""
        if self.ended() is None or self.unguarded:  # else the guard may have reaped it
            self._signal_group(signal.SIGKILL)
        return any(self._descendants().kill_found())

    def await_none_left(self) -> None:
        """Wait until the guard has killed all; do it if it was killed itself."""
        while not self.none_left and not self.unguarded:
            select.select([self.tidings], [], [])
            self._hear()
        while self.unguarded and self.kill_found():
            time.sleep(LOOK_AGAIN)

    def ended(self) -> int | None:
        """Return how it ended, as an exit code or minus a signal's number; None while it runs. It is not reaped."""
        self._hear()
        if self._status is None and self.unguarded:
            self._status = status_of(self.pid)
        return self._status

    def reap(self) -> None:
        """Let the system forget it, if the guard could not."""
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def _signal_group(self, number: int) -> None:
        if not self.grouped:
            self.signal(number)
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def _hear(self) -> None:
        with suppress(BlockingIOError):
            while not self.unguarded:
                data = os.read(self.tidings, NUMBER.size)
                self.unguarded = not data
                if data == NUMBER.pack(NONE_LEFT):
                    self.none_left = True
                elif data:
                    (self._status,) = NUMBER.unpack(data)

    def _descendants(self) -> Descendants:
        self._hear()
        return self._below_us if self.unguarded else self._below_guard


def fork_child(argv: Sequence[str], pipes: Pipes, *, grouped: bool) -> int:
    """Fork the child that will become ``argv``; return its pid. To be called in its guard."""
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(pipes.go)
            os.close(pipes.refusal)
            _become(argv, grouped, parent, pipes.wait_for, pipes.refuse)
        finally:
            os._exit(1)
    if grouped:
        with suppress(PermissionError, ProcessLookupError):
            os.setpgid(pid, pid)  # the child does so too: whoever is first
    return pid


def status_of(pid: int) -> int | None:
    """Return how a child of ours ended, as `Child.ended` does; None while it runs."""
    try:
        info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # it is not ours: no kernel made us adopt it
        return -signal.SIGKILL
    if info is None:
        return None
    return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status


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


def _become(argv: Sequence[str], grouped: bool, parent: int, wait_for: int, refuse: int) -> NoReturn:
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python changed these
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else a shell's & had it ignored: stays so
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if grouped:
        with suppress(PermissionError):
            os.setpgid(0, 0)
    at_death_of(parent, signal.SIGKILL)
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
