"""Count page views without a lock: compare-and-set, retried if another client was faster.

Four processes count 50 views each of one page.
"""

from __future__ import annotations

import argparse
import sys

from side_by_side import arguments, client, join, start, verdict

PROCESSES = 4
EACH = 50


def view(number: int, place: argparse.Namespace) -> None:
    """Look at the page again and again."""
    with client(place) as locks:
        views = locks.versioned("views:/index")
        for _ in range(EACH):
            views.update(lambda count: (count or 0) + 1)


def main() -> int:
    """Count in several processes, and look at the sum."""
    place = arguments(__doc__)
    join(start(PROCESSES, view, place))
    with client(place) as locks:
        count, version = locks.versioned("views:/index").get()
    print(f"{PROCESSES} processes counted {EACH} views each: {count} views, version {version}")
    broken = [] if count == PROCESSES * EACH else [f"{PROCESSES * EACH - (count or 0)} views were lost"]
    return verdict(broken, "no view was lost")


if __name__ == "__main__":
    sys.exit(main())
