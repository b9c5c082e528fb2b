"""Hand-overs among processes of both flavors: no wake-up is lost, and each arrives soon."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.missed_turns import Missed, turns_missed

HANDOVER_CLIENT = Path(__file__).parents[2] / "support" / "programs" / "handover_client.py"

LEASE = 3.0

WITHIN = 0.005
"""A hand-over takes at most this many seconds: 99 % of them (nightly), the median (by day, next to other tests)."""

LOST = 1 / 3
"""Part of a lease that the name stands idle if a wake-up is lost: then the waiter's renewal finds the grant."""


def handed_over(url: str, namespace: str, **order: Any) -> tuple[list[float], float]:
    """Hand a lock over among processes.

    Return the duration of each hand-over, without the time in which this machine did not run us, and the duration of
    the whole.
    """
    command = [sys.executable, str(HANDOVER_CLIENT), url, namespace, json.dumps(order)]
    with turns_missed() as missed:
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    reported = json.loads(done.stdout)
    assert not reported["errors"]
    durations = [duration_without_missed_turns(missed, begin, end) for begin, end in reported["spans"]]
    return sorted(durations), reported["took"]


def duration_without_missed_turns(missed: Missed, begin: float, end: float) -> float:
    """Return the duration of one hand-over; missed turns are looked up only where it matters."""
    return end - begin if end - begin <= WITHIN else missed.less(begin, end)


@pytest.mark.parametrize(
    ("count", "part"), [(2_000, 0.5), pytest.param(100_000, 0.99, marks=pytest.mark.nightly)], ids=["day", "night"]
)
@pytest.mark.parametrize("fair", [False, True], ids=["any order", "fair"])
@pytest.mark.timeout(900)
def test_no_wake_up_is_lost_or_late(
    redis_server: Any, namespace: str, fair: bool, count: int, part: float, record_property: Any
) -> None:
    took, seconds = handed_over(redis_server.url, namespace, handovers=count, fair=fair, lease=LEASE, ignore_messages=0)
    p50, p99, longest = (took[int((len(took) - 1) * each)] for each in (0.5, 0.99, 1.0))
    record_property("sum:hand-overs among processes", len(took))
    print(f"{len(took)} in {seconds:.1f} s; ms: p50 {p50 * 1e3:.2f}, p99 {p99 * 1e3:.2f}, longest {longest * 1e3:.1f}")
    assert len(took) >= count
    assert longest <= LEASE * LOST / 2
    assert took[int((len(took) - 1) * part)] <= WITHIN


def test_the_check_detects_a_lost_wake_up(redis_server: Any, namespace: str) -> None:
    lease = 0.9
    took, _ = handed_over(redis_server.url, namespace, handovers=150, fair=True, lease=lease, ignore_messages=20)
    assert took[-1] > lease * LOST / 2
    assert took[len(took) // 2] <= lease * LOST / 2
