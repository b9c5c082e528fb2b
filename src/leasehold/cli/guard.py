"""The guard of ``run``: a small process that ends the command when we cannot.

Theory of operation
-------------------
We tell the guard, through a pipe, when the command must be gone: a little before the lock may be another's. It kills it

* when the pipe ends, since then we died (kill -9, out of memory), and
* when that time has passed without a later one, since then we are stopped or stuck.

So no command runs past the last confirmed lease, whatever happens to us. The guard has a session of its own: signals of
the terminal do not reach it, and it does not stop when we are stopped. The kernel kills the command too when we die
(see `family.die_with`), for the case that the guard was killed first; the guard reaches what the command started.
"""

from __future__ import annotations

import math
import os
import select
import signal
import struct
from contextlib import suppress
from dataclasses import dataclass

from leasehold.cli.family import Child
from leasehold.runtimes.clock import boottime

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

    def dismiss(self) -> None:
        """Let it end without killing anyone, and wait until it has."""
        self.kill_at(STAND_DOWN)
        os.close(self.pipe)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def fork_guard(child: Child) -> Guard:
    """Fork the guard of ``child``; like the child, before any thread exists."""
    news, pipe = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _watch_over(child, news)
        finally:
            os._exit(0)
    os.close(news)
    return Guard(pid, pipe)


def _watch_over(child: Child, news: int) -> None:
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    os.closerange(0, news)  # our standard output must not keep a pipe's reader waiting, nor our pipes the child
    os.closerange(news + 1, os.sysconf("SC_OPEN_MAX"))
    if _until_told(news):
        child.signal_all(signal.SIGKILL)


def _until_told(news: int) -> bool:
    """Sleep until there is a reason to kill the command, or none any more; return which."""
    deadline = STAND_DOWN  # the command has not begun: only our death matters
    while True:
        left = deadline - boottime()
        if left <= 0:
            return True
        pause = None if deadline == STAND_DOWN else min(left, LOOK_EVERY)
        if not select.select([news], [], [], pause)[0]:
            continue
        data = os.read(news, 4096)
        if not data:
            return True
        (deadline,) = struct.unpack("=d", data[-8:])
        if deadline == STAND_DOWN:
            return False
