"""What of ours lives in this process, so that it can be seen whether something is left behind."""

from __future__ import annotations

import threading
from pathlib import Path

from leasehold_lab.servers.base import reserved

OURS = ("leasehold-", "fault-proxy")
"""How the names of our threads begin."""

lasting: set[int] = set()
"""Process ids of servers that outlive a test."""


def alive() -> set[str]:
    """Return what could leak."""
    threads = {
        f"thread {thread.name} ({thread.ident})" for thread in threading.enumerate() if thread.name.startswith(OURS)
    }
    return threads | children() | sockets()


def children() -> set[str]:
    """Return the child processes of this one that have not been waited for."""
    found = set()
    for path in Path("/proc/self/task").glob("*/children"):
        try:
            pids = path.read_text().split()
        except OSError:  # the thread ended
            continue
        for pid in pids:
            command = _command(pid)
            if int(pid) not in lasting and "resource_tracker" not in command and "forkserver" not in command:
                found.add(f"child {pid} {command[:60]}".rstrip())
    return found


def _command(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def sockets() -> set[str]:
    """Return the open sockets of this process."""
    found = set()
    for path in Path("/proc/self/fd").glob("*"):
        try:
            target = path.readlink()
        except OSError:  # the file descriptor of this very search
            continue
        if str(target).startswith("socket:") and int(path.name) not in reserved:
            found.add(str(target))
    return found
