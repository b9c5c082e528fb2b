"""The guard of ``run``: a small process between us and the command, that ends the command when we cannot.

Theory of operation
-------------------
We tell the guard, through a pipe, when the command must be gone: a little before the lock may be another's. It kills
the command and all that it started, whatever session that is in by now (see `descent`), until nobody is left,

* when the pipe ends, since then we died (kill -9, out of memory), and
* when that time has passed without a later one, since then we are stopped or stuck.

So nothing runs past the last confirmed lease, whatever happens to us. The guard has a session of its own: signals of
the terminal do not reach it, and it does not stop when we are stopped. If it is stopped itself, the kernel lets it go
on when we die.

The order of what follows a death, where the store sees processes die (SQLite) and would give the lock away at once:

1. We are killed. The store knows the hold by the *guard's* process, so to everybody it is still held.
2. The guard kills all, and ends when nobody is left. If a rival looks before that, it finds the lock taken.
3. The guard is dead: who looks now may take the lock. If the guard cannot end, the lease does.

If the guard is killed instead, the kernel kills the command before anybody can see the guard dead. What else there is
becomes ours; we kill it and end, but a rival may be quicker. If both are killed at once, the command dies with the
guard, and nobody looks for the rest.
"""

from __future__ import annotations

import math
import os
import select
import signal
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

from leasehold._runtimes.clock import boottime
from leasehold.cli.run.descendants import LOOK_AGAIN, Descendants, adopt_orphans, at_death_of, children_of
from leasehold.cli.run.processes import NONE_LEFT, NUMBER, Child, Pipes, fork_child, status_of

LOOK_EVERY = 1.0
"""Seconds between two looks at the clock: `select` does not count the time that the machine sleeps."""

STAND_DOWN = math.inf
"""Said instead of a time when the command has ended."""


@dataclass(frozen=True, slots=True)
class Guard:
    """Our end of the pipe."""

    pid: int
    pipe: int

    def kill_at(self, deadline: float) -> None:
        """Tell when to kill the command unless a later time is told before, on the boot-time clock."""
        with suppress(BrokenPipeError):  # it was killed: the kernel and our own timers remain
            os.write(self.pipe, struct.pack("=d", deadline))

    def kill_all(self) -> None:
        """Have it kill the command and all that it started now; `Child.none_left` tells when that is done."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)  # should somebody have stopped it
        self.kill_at(0.0)

    def dismiss(self) -> None:
        """Let it end without killing anyone, and wait until it has."""
        self.kill_at(STAND_DOWN)
        os.close(self.pipe)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def fork_guarded(argv: Sequence[str], *, grouped: bool) -> tuple[Child, Guard]:
    """Fork the guard, and by it the child that will become ``argv``; before any thread exists."""
    pipes = Pipes.open()
    (news, pipe), (tidings, tell) = os.pipe(), os.pipe()
    us, known = os.getpid(), children_of(os.getpid())
    adopt_orphans()  # should the guard be killed
    pid = os.fork()
    if pid == 0:
        try:
            os.close(pipe)
            os.close(tidings)
            _guard(argv, pipes, us, news, tell, grouped=grouped)
        finally:
            os._exit(0)
    for end in (news, tell, pipes.wait_for, pipes.refuse):
        os.close(end)
    told = os.read(tidings, NUMBER.size)
    if not told:
        raise OSError("the process that guards the command was killed as it began")
    os.set_blocking(tidings, False)
    return Child(NUMBER.unpack(told)[0], pipes, tidings, pid, grouped, known), Guard(pid, pipe)


def _guard(argv: Sequence[str], pipes: Pipes, us: int, news: int, tell: int, *, grouped: bool) -> NoReturn:
    adopt_orphans()
    child = fork_child(argv, pipes, grouped=grouped)
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    low, high = sorted((news, tell))
    os.closerange(0, low)  # our standard output must not keep a pipe's reader waiting, nor our pipes the child
    os.closerange(low + 1, high)
    os.closerange(high + 1, os.sysconf("SC_OPEN_MAX"))
    at_death_of(us, signal.SIGCONT)
    os.write(tell, NUMBER.pack(child))
    Watch(child, news, tell).keep()
    os._exit(0)


class Watch:
    """What the guard does."""

    def __init__(self, child: int, news: int, tell: int) -> None:
        self._child = child
        self._news = news
        self._tell = tell
        self._family = Descendants(os.getpid())
        self._ended, woken = os.pipe()  # readable when a child of ours has ended
        os.set_blocking(self._ended, False)
        os.set_blocking(woken, False)
        signal.signal(signal.SIGCHLD, _woken)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        self._told = False

    def keep(self) -> None:
        """Kill at each deadline, and when `run` has died; return when there is nothing left to guard."""
        deadline = STAND_DOWN  # the command has not begun: only the death of `run` matters
        while True:
            self._bury()
            left = deadline - boottime()
            if left <= 0:
                self._kill()
                deadline = STAND_DOWN
                continue
            pause = None if deadline == STAND_DOWN else max(0.0, min(left, LOOK_EVERY))
            ready = select.select([self._news, self._ended], [], [], pause)[0]
            if self._ended in ready:
                os.read(self._ended, 4096)
            if self._news not in ready:
                continue
            data = os.read(self._news, 4096)
            if not data:
                return self._kill()
            (deadline,) = struct.unpack("=d", data[-8:])
            if deadline == STAND_DOWN:
                return None

    def _kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child, signal.SIGKILL)  # if it leads a group; where there is no /proc, it is all
        with suppress(ProcessLookupError, PermissionError):
            os.kill(self._child, signal.SIGKILL)
        while not self._childless():
            ours = self._family.kill_found()
            if self._told and ours and not any(ours):
                break  # processes of another user
            time.sleep(LOOK_AGAIN)
        self._say(NONE_LEFT)

    def _childless(self) -> bool:
        """Reap who ended; say whether nobody is left. The last is the command: until it is told, it is not reaped."""
        self._bury()
        if self._told:
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
                return False
        return self._told

    def _bury(self) -> None:
        """Tell how the command ended, once; reap orphans until then, and nobody after (see `family`)."""
        while not self._told:
            try:
                info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if info is None:
                return
            if info.si_pid != self._child:
                os.waitpid(info.si_pid, 0)
                continue
            self._told = True
            self._say(status_of(self._child) or 0)

    def _say(self, number: int) -> None:
        with suppress(BrokenPipeError):
            os.write(self._tell, NUMBER.pack(number))


def _woken(number: int, frame: FrameType | None) -> None:
    """Have a handler, so that the signal reaches the pipe."""
