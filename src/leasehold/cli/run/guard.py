"""The guard of ``run``: a small process, the parent of the command, that kills it when `run` cannot.

Theory of operation
-------------------
`run` sends the guard a deadline through a pipe: a little before another client may acquire the lock. The guard kills
the command and all that it started, whatever session that is in by now (see ``descendants.py``), until none is left,

* when the pipe ends, because `run` died (kill -9, out of memory), and
* when the deadline passes without a later one, because `run` is stopped or stuck.

So no process runs past the last confirmed lease. The guard has a session of its own: signals of the terminal do not
reach it, and it continues when `run` is stopped. If the guard itself is stopped, the kernel continues it when `run`
dies.

SQLite's store notices the death of a process and frees its locks at once. There the order of events is:

1. `run` is killed. The store knows the hold by the *guard's* process, so the lock is still held.
2. The guard kills all, and ends when none is left. A rival that looks before that finds the lock held.
3. The guard is dead, so a rival may acquire the lock. If the guard cannot end, the lease ends.

If the guard is killed instead, the kernel kills the command before the guard's death is visible. The other processes
become children of `run`, which kills them and ends; but a rival may be quicker. If both are killed at once, the command
dies with the guard, and the other processes continue.
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
from dataclasses import dataclass, replace
from types import FrameType
from typing import NoReturn

from leasehold._runtimes.clock import boottime
from leasehold._url import parse
from leasehold.cli.run.descendants import LOOK_AGAIN, Descendants, adopt_orphans, at_death_of, children_of
from leasehold.cli.run.processes import NONE_LEFT, NUMBER, Child, Pipes, fork_child, status_of
from leasehold.store_api import Opener
from leasehold.stores.registry import opener

LOOK_EVERY = 1.0  # seconds between two reads of the clock: `select` does not count the time that the machine sleeps
WHOLE_PIPE = 1 << 20  # bytes, more than a pipe has
DISMISSED = math.inf  # sent in place of a deadline when the command has ended


def guarded_store(url: str, guard: int) -> Opener:
    """Return what opens the store at ``url`` for `run`.

    SQLite notices the death of a process, so it watches the guard. All others notice the end of a lease or a session.
    """
    found = opener(url)
    if parse(url).scheme == "sqlite":
        from leasehold.stores.sqlite import SQLite
        from leasehold.stores.sqlite.machine import Machine

        assert isinstance(found, SQLite)
        return replace(found, machine=Machine(guard=guard))
    return found


@dataclass(frozen=True, slots=True)
class Guard:
    """The end of the pipe at which `run` writes."""

    pid: int
    pipe: int

    def kill_at(self, deadline: float) -> None:
        """Send the deadline at which the guard kills, on the boot-time clock. A later one replaces it."""
        with suppress(BlockingIOError):  # it is stopped, and has not read the last thousands; renewals go on
            self._send(deadline)

    def resume(self) -> None:
        """Let the guard continue if it was stopped: it alone knows when the command has ended."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)

    def kill_all(self) -> None:
        """Have the guard kill the command and all that it started; `Child.none_left` is set when it has."""
        self.resume()
        os.set_blocking(self.pipe, True)  # this one must arrive
        self._send(0.0)

    def dismiss(self) -> None:
        """End the guard without a kill, and wait until it has ended."""
        self.resume()
        os.set_blocking(self.pipe, True)
        self._send(DISMISSED)
        os.close(self.pipe)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def _send(self, deadline: float) -> None:
        with suppress(BrokenPipeError):  # it was killed: the kernel and our own timers kill then
            os.write(self.pipe, struct.pack("=d", deadline))


def fork_guarded(argv: Sequence[str], *, grouped: bool) -> tuple[Child, Guard]:
    """Fork the guard, which forks the child that will become ``argv``. Call it before any thread exists."""
    pipes = Pipes(*os.pipe(), *os.pipe())
    (deadlines, pipe), (reports, report) = os.pipe(), os.pipe()
    us, known = os.getpid(), children_of(os.getpid())
    adopt_orphans()  # in case the guard is killed
    pid = os.fork()
    if pid == 0:
        try:
            os.close(pipe)
            os.close(reports)
            _guard(argv, pipes, us, deadlines, report, grouped=grouped)
        finally:
            os._exit(0)
    for end in (deadlines, report, pipes.wait_for, pipes.refuse):
        os.close(end)
    first_report = os.read(reports, NUMBER.size)
    if not first_report:
        raise OSError("the guard process was killed at its start")
    os.set_blocking(reports, False)
    os.set_blocking(pipe, False)
    return Child(NUMBER.unpack(first_report)[0], pipes, reports, pid, grouped, known), Guard(pid, pipe)


def _guard(argv: Sequence[str], pipes: Pipes, us: int, deadlines: int, report: int, *, grouped: bool) -> NoReturn:
    adopt_orphans()
    child = fork_child(argv, pipes, grouped=grouped)
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    _close_all_but(deadlines, report)  # our output must not keep a pipe's reader waiting, nor our pipes the child
    at_death_of(us, signal.SIGCONT)
    os.write(report, NUMBER.pack(child))
    GuardProcess(child, deadlines, report).run()
    os._exit(0)


def _close_all_but(*kept: int) -> None:
    for folder in ("/proc/self/fd", "/dev/fd"):  # a limit of a billion takes minutes where no range is closed at once
        with suppress(OSError):
            found = {int(name) for name in os.listdir(folder)}
            if found.issuperset(kept):  # BSD's without fdescfs has the first three only
                for number in found.difference(kept):
                    with suppress(OSError):  # that of the listing itself is closed
                        os.close(number)
                return
    low, high = sorted(kept)
    os.closerange(0, low)
    os.closerange(low + 1, high)
    os.closerange(high + 1, os.sysconf("SC_OPEN_MAX"))


class GuardProcess:
    """The loop of the guard process."""

    def __init__(self, child: int, deadlines: int, report: int) -> None:
        self._child = child
        self._deadlines = deadlines
        self._report = report
        self._descendants = Descendants(os.getpid())
        self._ended, woken = os.pipe()  # readable when a child of the guard has ended
        os.set_blocking(self._ended, False)
        os.set_blocking(woken, False)
        signal.signal(signal.SIGCHLD, _woken)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        self._reported = False
        self._reaped = False  # then its pid may be a stranger's

    def run(self) -> None:
        """Kill at each deadline, and when `run` has died; return when `run` has died or dismissed the guard."""
        deadline = DISMISSED  # the command has not begun: only the death of `run` matters
        while True:
            self._reap()
            left = deadline - boottime()
            if left <= 0:
                self._kill()
                deadline = DISMISSED
                continue
            pause = None if deadline == DISMISSED else max(0.0, min(left, LOOK_EVERY))
            ready = select.select([self._deadlines, self._ended], [], [], pause)[0]
            if self._ended in ready:
                os.read(self._ended, 4096)
            if self._deadlines not in ready:
                continue
            data = os.read(self._deadlines, WHOLE_PIPE)  # only the last one counts
            if not data:
                return self._kill()
            (deadline,) = struct.unpack("=d", data[-8:])
            if deadline == DISMISSED:
                return None

    def _kill(self) -> None:
        for kill in () if self._reaped else (os.killpg, os.kill):  # without /proc this is all we can kill
            with suppress(ProcessLookupError, PermissionError):  # it may lead no group
                kill(self._child, signal.SIGKILL)
        while not self._childless():
            ours = self._descendants.kill_found()
            if self._reported and ours and not any(ours):
                break  # processes of another user
            time.sleep(LOOK_AGAIN)
        self._send(NONE_LEFT)

    def _childless(self) -> bool:
        """Reap children that ended; return whether none is left. The command is reaped last, after its report."""
        self._reap()
        if self._reported:
            self._reaped = True
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
                return False
        return self._reported

    def _reap(self) -> None:
        """Report once how the command ended; reap orphans until then, and none after (see ``processes.py``)."""
        while not self._reported:
            try:
                info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if info is None:
                return
            if info.si_pid != self._child:
                os.waitpid(info.si_pid, 0)
                continue
            self._reported = True
            self._send(status_of(self._child) or 0)

    def _send(self, number: int) -> None:
        with suppress(BrokenPipeError):
            os.write(self._report, NUMBER.pack(number))


def _woken(number: int, frame: FrameType | None) -> None:
    """Do nothing: without a handler the signal would not reach the pipe."""
