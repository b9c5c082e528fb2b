"""`leasehold run` and its own lines on standard error: a reader that stops reading them must not affect the lock."""

from __future__ import annotations

import fcntl
import os
import sys

import pytest
from shells import Shell

from support.patience import until

LOST = 76

CLEANS_UP = """
import os, signal, sys, time

def stop(number, frame):
    with open("cleaned", "w") as file:
        file.write("up\\n")
    os._exit(0)

signal.signal(signal.SIGTERM, stop)
with open("began", "w") as file:
    file.write("now\\n")
time.sleep(60)
"""

FAILS = """
import os, sys
from pathlib import Path
from leasehold.cli.group import main
from leasehold.cli.run import supervise
from leasehold.client import AsyncClient

class Failing(supervise.Supervisor):
    def _check(self, hold):
        if self._running:
            raise RuntimeError("a mistake")
        return super()._check(hold)

supervise.Supervisor = Failing
closed = AsyncClient.__aexit__

async def close(self, *error):
    await closed(self, *error)
    print(sum(one.read_bytes() == b"sleep\\x0071.25\\x00" for one in Path("/proc").glob("[0-9]*/cmdline")))

AsyncClient.__aexit__ = close
main(sys.argv[4:])
"""
"""A run with a mistake of its own; it prints how many processes of its command there are when the lock is free."""


LATE_SIGNALS = """
import signal, sys
from asyncio.selector_events import BaseSelectorEventLoop
from leasehold.cli.group import main

closed = BaseSelectorEventLoop.close

def close(self):
    closed(self)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.raise_signal(number)

BaseSelectorEventLoop.close = close
main(sys.argv[4:])
"""
"""A run that is told of a child, such as one that is stopped, and to end, while its event loop is being closed."""


def _standard_error(kind: str) -> tuple[int, int | None]:
    """Return what the run gets, and the end at which it is read, if there is one."""
    if kind == "full":
        return os.open("/dev/full", os.O_WRONLY), None
    reader, writer = os.pipe()
    if kind == "gone":
        os.close(reader)
        return writer, None
    room = fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ)
    os.write(writer, b"x" * room)
    return writer, reader


@pytest.mark.parametrize("kind", ["gone", "full", "stalled"])
def test_a_command_is_stopped_in_order_whoever_reads_the_messages(sqlite_shell: Shell, kind: str) -> None:
    writer, reader = _standard_error(kind)
    options = ("--lease", "5", "--max-hold", "1.5", "--grace", "2")
    run = sqlite_shell.start("run", "job", *options, "--", sys.executable, "-c", CLEANS_UP, stderr=writer)
    try:
        assert sqlite_shell.file("cleaned") == "up"
        if reader is not None:
            until(lambda: sqlite_shell.json("ls") == [])  # released, although no line was read yet
            while b"about to be lost" not in os.read(reader, 1 << 20):
                pass
        assert run.wait(10) == LOST
    finally:
        os.close(writer)
        if reader is not None:
            os.close(reader)


def test_a_run_that_fails_kills_before_the_lock_is_free(sqlite_shell: Shell) -> None:
    script = "setsid sh -c 'sleep 71.25; true' & echo 1 >began; sleep 71.25"
    run = sqlite_shell.start("run", "job", "--", "sh", "-c", script, wrap=(sys.executable, "-c", FAILS))
    out, err = run.communicate(timeout=20)
    assert out == "0\n", err
    assert (run.returncode, "a mistake" in err) == (70, True)


def test_a_signal_at_the_very_end_writes_nothing_to_standard_error(sqlite_shell: Shell) -> None:
    run = sqlite_shell.start("run", "job", "--", "echo", "done", wrap=(sys.executable, "-c", LATE_SIGNALS))
    assert (*run.communicate(timeout=20), run.returncode) == ("done\n", "", 0)
