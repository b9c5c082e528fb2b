"""Private clocks of a server process, which a test can step: a small preloaded library (Linux).

The library answers the process's clock calls. It adds an offset from a mapped file of sixteen bytes, which the test
writes: one number for the wall clock, one for the boot-time clock. The monotonic clock is unchanged. gcc compiles the
library once for each test process.
"""

from __future__ import annotations

import mmap
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from shutil import which

from leasehold_lab.servers.base import MissingServer, Server, find_program

SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long long *ahead;  /* microseconds: of the wall clock, of that since boot */

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("LEASEHOLD_CLOCK");
    int file = path ? open(path, O_RDONLY) : -1;
    void *found = file < 0 ? MAP_FAILED : mmap(0, 16, PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) ahead = found;
    if (file >= 0) close(file);
}

/* The kernel is asked by system calls: looking for the C library's own functions may need the time itself. */
int clock_gettime(clockid_t id, struct timespec *now) {
    int failed = (int) syscall(SYS_clock_gettime, id, now);
    int wall = id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE;
    if (!failed && ahead && (wall || id == CLOCK_BOOTTIME)) {
        long long us = now->tv_sec * 1000000LL + now->tv_nsec / 1000 + ahead[!wall];
        now->tv_nsec = us % 1000000 * 1000 + now->tv_nsec % 1000;
        now->tv_sec = us / 1000000;
    }
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec found;
    (void) zone;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now) { now->tv_sec = found.tv_sec; now->tv_usec = found.tv_nsec / 1000; }
    return 0;
}

time_t time(time_t *now) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now) *now = found.tv_sec;
    return found.tv_sec;
}
"""


class Clock:
    """The offsets of the clocks of one process.

    Args:
        folder: of the server, or any folder; the file with the offsets is created there.

    """

    def __init__(self, folder: Path) -> None:
        self._library = library()
        self._path = folder / "clock"
        self._path.write_bytes(bytes(16))

    @property
    def command_prefix(self) -> list[str]:
        """The prefix of the server's command line."""
        env = which("env") or "/usr/bin/env"
        return [env, f"LD_PRELOAD={self._library}", f"LEASEHOLD_CLOCK={self._path}"]

    def step(self, seconds: float) -> None:
        """Set the wall clock forward, or back."""
        self._add(seconds, 0.0)

    def sleep(self, seconds: float) -> None:
        """Simulate a suspended machine: advance all clocks except the monotonic clock."""
        self._add(seconds, seconds)

    def _add(self, *seconds: float) -> None:
        with self._path.open("r+b") as file, mmap.mmap(file.fileno(), 16) as shared:
            for place, more in zip((slice(0, 8), slice(8, 16)), seconds, strict=True):
                ahead = int.from_bytes(shared[place], "little", signed=True) + round(more * 1e6)
                shared[place] = ahead.to_bytes(8, "little", signed=True)


class ClockedServer(Server):
    """A server that can have its own wall clock.

    Attributes:
        clock: its own clock; None if it has that of the machine.

    """

    clock: Clock | None = None

    def give_clock(self) -> Clock:
        """Give the server its own wall clock, which a test can step. Must be called before `start`.

        Raises:
            MissingServer: there is no gcc.

        """
        self.clock = Clock(self.folder)
        return self.clock

    def _command_prefix(self) -> Sequence[str]:
        return () if self.clock is None else self.clock.command_prefix


@cache
def library() -> Path:
    """Compile the library; return its path.

    Raises:
        MissingServer: there is no gcc, or no C library to compile with.

    """
    gcc = find_program(["gcc"], "gcc libc6-dev")
    folder = Path(_folder().name)
    (folder / "clock.c").write_text(SOURCE)
    made = folder / "clock.so"
    command = [gcc, "-O2", "-shared", "-fPIC", "-o", str(made), str(folder / "clock.c")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MissingServer(f"gcc cannot compile; on Debian: apt-get install gcc libc6-dev\n{done.stderr[-500:]}")
    folder.chmod(0o755)  # a server that gives up root's rights still has to read it
    return made


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="leasehold-")
