"""What releases of etcd lack on which a promise rests: from which one each is mended, and by which change there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

Minor = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Mended:
    """A fault of etcd that no client can make up for.

    Attributes:
        fault: what may happen without the change.
        breaks: whether a promise of locks does not hold then.
        since: for each line of releases the first that has the change; lines that are not there never had the fault.
        where: the change, or the issue, in etcd's repository.

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


MENDED = (
    Mended(
        "a leader whose disk stalls may end leases that another leader has renewed, so two may hold",
        True,
        {(3, 4): 31, (3, 5): 13},
        "issue 15247",
    ),
    Mended(
        "a lease may end though etcd has just confirmed its renewal, so two may hold",
        True,
        {(3, 4): 38, (3, 5): 23, (3, 6): 5},
        "pull request 20616",
    ),
    Mended(
        "members may come to differ after a crash, so tokens may go back",
        True,
        {(3, 5): 3},
        "pull request 13908",
    ),
    Mended(
        "reads may be out of date after a member was stopped; locks do not rest on reads",
        False,
        {(3, 4): 42, (3, 5): 28, (3, 6): 9},
        "issue 20418",
    ),
)


def faults_of(version: str) -> list[Mended]:
    """Return which of them a release has."""
    return [one for one in MENDED if one.affects(version)]


def numbers(version: str) -> tuple[int, int, int]:
    """Read a version; what is missing is 0."""
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else (0, 0, 0)
