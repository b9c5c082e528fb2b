"""Exit codes of the commands. Those of ``run`` keep clear of what programs use; most are the ones of ``sysexits.h``."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes other than 0."""

    NO = 1  # show: the name is free; break: that holder was gone; doctor: a warning
    BAD = 2  # doctor: an error
    MISSING = 3  # an extra is not installed
    USAGE = 64  # a mistake in the command line, the URL, or a value
    WRONG_KIND = 65  # the name is in use as another primitive, or the store cannot do what was asked
    UNAVAILABLE = 69  # the store does not answer, or refuses
    INTERNAL = 70  # an internal error of leasehold
    TAKEN = 75  # another client holds the lock; try again later
    LOST = 76  # the lock was lost while the command ran
    NOT_EXECUTABLE = 126
    NOT_FOUND = 127


SIGNALLED = 128  # added to the number of the signal that ended the command, as shells do
