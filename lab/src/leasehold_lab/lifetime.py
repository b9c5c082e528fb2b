"""How a command ends, and how its child processes end with it, whatever ends it.

Theory of operation
-------------------
1. A command that is asked to end, by Ctrl-C, SIGTERM or the loss of its terminal, unwinds its ``with`` blocks: they end
   the children, remove the files, and free what is on the server (`end_on_signals`).
2. A command that is killed cannot do that. The kernel then kills its children, also those that are stopped: a program
   by `tied_to_this_process`, a fork by `end_with`. A child that has something to clean up reads a pipe from its parent
   to the end instead; the kernel continues it if it was stopped.

The kernel's signal comes when the *thread* that started the child ends, so a child is started by the main thread, or by
one that lives as long.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that ask a command to end."""

SIGNALLED = 128
"""Added to the number of a signal: the exit code of shells."""

PR_SET_PDEATHSIG = 1
"""From ``linux/prctl.h``."""

DIES_WITH_PARENT = """
import ctypes, os, sys
uid, gid = int(sys.argv[2]), int(sys.argv[3])
if uid:
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL; after the change of user, which would undo it
if os.getppid() != int(sys.argv[1]):  # the parent died before we asked
    os._exit(1)
os.execvp(sys.argv[4], sys.argv[4:])
"""


class Ended(SystemExit):
    """The user asked for the end; the exit code tells by which signal."""


def end_on_signals() -> None:
    """Raise `Ended` in the main thread at the first of `SIGNALS`, and ignore the later ones: the end is under way.

    A signal that is ignored stays so: a shell has disabled it for background jobs, or ``nohup`` for its command.
    """
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> None:
    for other in SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    raise Ended(SIGNALLED + number)


def end_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when the process ``parent`` ends, where it can (Linux)."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it ended before we asked
        os.kill(os.getpid(), number)


def tied_to_this_process(command: Sequence[str], uid: int = 0, gid: int = 0) -> list[str]:
    """Return a command that the kernel kills when this thread ends, where it can (Linux).

    Args:
        command: the program and its arguments.
        uid: the user that it becomes first; 0 changes none.
        gid: the group of that user.

    """
    if sys.platform != "linux":
        return list(command)
    return [sys.executable, "-ISc", DIES_WITH_PARENT, str(os.getpid()), str(uid), str(gid), *command]
