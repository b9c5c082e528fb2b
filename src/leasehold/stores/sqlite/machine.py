"""This machine and this process as the kernel reports them: boot, clock, process, alive or not.

On Linux all of it is read from ``/proc``. Tests use another root to simulate another machine.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import dataclass

from leasehold.errors import Unsupported


@dataclass(frozen=True, slots=True)
class Process:
    """One process of this boot.

    Attributes:
        pid: its process ID.
        started: when it began, in ticks since boot; 0 if unknown. A pid is reused, the pair is not.
        pids: the pid namespace in which the pid counts; empty where there is none.
    """

    pid: int
    started: int
    pids: str


class Machine:
    """What the kernel reports. Nothing is cached here.

    ``guard``: the pid of a process that is recorded in place of ours; None to record ours. Other processes consider our
    entries void when the guard has ended. The guard ends after our process, and after all processes that ours must not
    leave behind. If the guard ends first, our process ends.
    """

    def __init__(self, proc: str = "/proc", guard: int | None = None) -> None:
        self._proc = proc
        self._guard = guard

    def boot(self) -> str:
        """Return the identity of this boot.

        Raises:
            Unsupported: this system has none, so a lease from before a crash looks like a live one.
        """
        if sys.platform == "darwin":
            found = _boot_session()
        else:
            found = self._read("sys/kernel/random/boot_id").strip()
        if not found:
            raise Unsupported(
                f"SQLite locks need an identity of the boot, which {sys.platform} does not give here (on Linux it is "
                "/proc/sys/kernel/random/boot_id): mount /proc, or use a server such as redis:"
            )
        return found

    def clock(self) -> str:
        """Return what tells this boot-time clock from others of the same boot: the offset of its time namespace.

        The offset and not the namespace's own number: two namespaces with one offset share the clock, and the number
        of a namespace that is gone is used again.
        """
        if self._link("self/ns/time") != self._link("self/ns/time_for_children"):
            return self._link("self/ns/time")  # the offsets that /proc shows are those of the children
        for line in self._read("self/timens_offsets").splitlines():
            clock, *offset = line.split()
            if clock == "boottime" and any(int(part) for part in offset):
                return " ".join(offset)
        return ""

    def mounts(self) -> str:
        """Return the mount table in the form of ``/proc/self/mountinfo``; empty where there is none."""
        return self._read("self/mountinfo")

    def network(self) -> str:
        """Return the identity of the network namespace: loopback does not reach beyond it."""
        return self._link("self/ns/net")

    def process(self) -> Process:
        """Return the calling process, or the guard that stands for it."""
        stat = _start_and_end(self._read("self/stat" if self._guard is None else f"{self._guard}/stat"))
        pid = os.getpid() if self._guard is None else self._guard
        return Process(pid, stat[0] if stat else 0, self._link("self/ns/pid"))

    def is_gone(self, other: Process, me: Process) -> bool:
        """Return whether ``other``, a process of this boot, has certainly ended; False in doubt.

        A pid of another pid namespace means nothing here. A zombie has ended: it runs no code, and its parent may never
        reap it.
        """
        if other == me or other.pids != me.pids:
            return False
        try:
            os.kill(other.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:  # of another user: it exists
            pass
        if not other.started or self._link("self") != str(os.getpid()):  # /proc is that of another pid namespace
            return False
        stat = _start_and_end(self._read(f"{other.pid}/stat"))  # empty if hidden from us, or just ended: next time
        return stat is not None and (stat[0] != other.started or stat[1])

    def _read(self, path: str) -> str:
        with suppress(OSError), open(f"{self._proc}/{path}", encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
        return ""

    def _link(self, path: str) -> str:
        with suppress(OSError):
            return os.readlink(f"{self._proc}/{path}")
        return ""


def _start_and_end(stat: str) -> tuple[int, bool] | None:
    """Return from ``/proc/PID/stat`` (see proc(5)) when the process began, and whether it has ended; None if unknown.

    The command in parentheses may have anything in it.
    """
    fields = stat.rpartition(")")[2].split()
    if len(fields) < 20:
        return None
    state, threads, started = fields[0], int(fields[17]), int(fields[19])
    return started, state in "ZXx" and threads <= 1  # the main thread may end before the others


def _boot_session() -> str:
    try:
        import ctypes  # some builds of Python lack it

        size = ctypes.c_size_t(64)
        text = ctypes.create_string_buffer(size.value)
        failed = ctypes.CDLL(None).sysctlbyname(b"kern.bootsessionuuid", text, ctypes.byref(size), None, 0)
    except (ImportError, OSError, AttributeError):
        return ""
    return "" if failed else text.value.decode("ascii", "replace")
