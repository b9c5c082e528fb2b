"""Faults of etcd's releases that break a promise or a finding, and the releases with the fix."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

Minor = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Fix:
    """The fix of a fault of etcd that no client can avoid.

    Attributes:
        fault: what may happen without the fix.
        breaks: whether a promise of locks is broken then.
        since: the first patch release with the fix, by minor release; a missing minor release never had the fault.
        where: the pull request, or the issue, in etcd's repository.

    """

    fault: str
    breaks: bool
    since: Mapping[Minor, int]
    where: str

    def affects(self, version: str) -> bool:
        """Return whether a release has the fault."""
        major, minor, patch = numbers(version)
        first = self.since.get((major, minor))
        return first is not None and patch < first


FIXES = (
    Fix(
        "a leader whose disk stalls may end leases that another leader has renewed, so two may hold",
        True,
        {(3, 4): 31, (3, 5): 13},
        "issue 15247",
    ),
    Fix(
        "a lease may end though etcd has just confirmed its renewal, so two may hold",
        True,
        {(3, 4): 38, (3, 5): 23, (3, 6): 5},
        "pull request 20616",
    ),
    Fix(
        "members may come to differ after a crash, so tokens may go back",
        True,
        {(3, 5): 3},
        "pull request 13908",
    ),
    Fix(
        "reads may be stale after a member was stopped; locks do not depend on reads",
        False,
        {(3, 4): 42, (3, 5): 28, (3, 6): 9},
        "issue 20418",
    ),
)


def faults_of(version: str) -> list[Fix]:
    """Return the fixes that a release lacks."""
    return [one for one in FIXES if one.affects(version)]


def numbers(version: str) -> tuple[int, int, int]:
    """Parse a version; a missing part is 0."""
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else (0, 0, 0)
