"""A lock on a file, for the processes of one host: SQLite has no lock that is longer than a transaction."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Generator
from contextlib import contextmanager

from leasehold.errors import AcquireTimeout

PAUSE = 0.1
"""Seconds between two tries to lock a file."""


@contextmanager
def file_lock(path: str, name: str, left: float | None) -> Generator[None, None, None]:
    """Hold the lock of a file, which is made if it is missing, while a block runs; the kernel frees it at its end.

    Raises:
        AcquireTimeout: another process had it for ``left`` seconds.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        began = time.monotonic()
        while not _try(file):
            waited = time.monotonic() - began
            if left is not None and waited >= left:
                raise AcquireTimeout(
                    f"could not acquire {name!r} within {left:g} s: another process has locked {path}",
                    name=name,
                    waited=waited,
                )
            time.sleep(PAUSE if left is None else min(PAUSE, left - waited))
        yield
    finally:
        os.close(file)  # this frees the lock


def _try(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
