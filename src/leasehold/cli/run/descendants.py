"""The descendants of a process, found on Linux whatever session or parent they have by now.

Theory of operation
-------------------
A process whose parent has ended becomes a child of the nearest ancestor that is a *child subreaper*, else of process 1.
The guard is a child subreaper, and an ancestor of the command. So ``/proc`` shows all that the command started below
the guard, also after a double fork and a session of its own. The guard kills what it finds until it has no child:
while a descendant is left, the eldest is a child of the guard. Processes of other users cannot be killed, and are left.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
"""From ``linux/prctl.h``."""

LOOK_AGAIN = 0.005  # seconds between two searches for descendants that are left, during a kill
SEARCHES = 10  # that find nothing, where only a search can tell that nothing is left


@dataclass(frozen=True, slots=True)
class Process:
    """A process in ``/proc``. A pid is used again some day; pid and start time together are not."""

    pid: int
    parent: int
    session: int
    started: int

    def signal(self, number: int) -> bool:
        """Send it a signal, but not to another process with its pid; return whether that is permitted."""
        descriptor = _pidfd(self.pid)
        try:
            found = _process(self.pid)
            if found is None or found.started != self.started:
                return True  # it is gone
            if descriptor is None:
                os.kill(self.pid, number)
            else:
                signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            pass
        except PermissionError:
            return False
        finally:
            if descriptor is not None:
                os.close(descriptor)
        return True


@dataclass(frozen=True, slots=True)
class Descendants:
    """All descendants of ``root``, without those children in ``excluded`` and their descendants."""

    root: int
    excluded: frozenset[int] = frozenset()

    def living(self) -> list[Process]:
        """Return the running ones, parents before their children; none where there is no ``/proc``."""
        children: dict[int, list[Process]] = {}
        for one in _processes():
            if one.pid not in self.excluded:
                children.setdefault(one.parent, []).append(one)
        found = list(children.get(self.root, ()))
        for known in found:  # grows while it is read
            found += children.get(known.pid, ())
        return found

    def kill_found(self) -> list[bool]:
        """Kill those that are found now, the youngest generation first; return for each whether that is permitted.

        Call it until none is left: while the files are read one by one, a process may fork and end unseen.
        """
        found = reversed(self.living())  # a `run` among them must not end before its own command
        return [one.signal(signal.SIGKILL) for one in found]


def adopt_orphans() -> None:
    """Become the parent of all orphaned descendants, where the kernel can do that (Linux)."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def at_death_of(parent: int, number: int) -> None:
    """Have the kernel send this process a signal when ``parent`` dies, where it can (Linux)."""
    _prctl(PR_SET_PDEATHSIG, number)
    if sys.platform == "linux" and os.getppid() != parent:  # it died before we asked
        os.kill(os.getpid(), number)


def children_of(pid: int) -> frozenset[int]:
    """Return the numbers of the children that a process has now, dead ones too."""
    return frozenset(one.pid for one in _processes(ended=True) if one.parent == pid)


def childless(known: frozenset[int]) -> bool:
    """Reap the children of this process that have ended; return whether none is left, but for ``known`` ones."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    # The kernel counts all children, so here we search, and again: a process that forks and ends may be missed.
    return bool(known) and not any(children_of(os.getpid()) - known for _ in range(SEARCHES))


def _pidfd(pid: int) -> int | None:
    """Return a descriptor of a process; None if it is gone, or where there are none: Linux 5.2, conda's Python."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _processes(*, ended: bool = False) -> list[Process]:
    entries = (entry.name for entry in Path("/proc").glob("[0-9]*"))
    return [one for name in entries if (one := _process(int(name), ended=ended)) is not None]


def _process(pid: int, *, ended: bool = False) -> Process | None:
    """Read ``/proc/PID/stat``, see proc(5); a process whose first thread has ended may still run."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        state, threads = fields[0], int(fields[17])
        found = Process(pid, int(fields[1]), int(fields[3]), int(fields[19]))
    except (OSError, ValueError, IndexError):
        return None
    return None if state in "ZXx" and threads <= 1 and not ended else found
