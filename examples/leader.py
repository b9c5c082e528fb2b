"""One leader of several candidates. The first leader is killed; another takes over, and all can see who leads.

The leader asks ``leadership.raise_if_lost()`` before each step, and is called back when the lead is lost.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from side_by_side import PATIENCE, arguments, client, join, note, notes, start, verdict

from leasehold import LeaseLost

CANDIDATES = 3
LEASE = 1.0
TERM = 1.0
"""Seconds that a leader leads here before it resigns."""

SLACK = 2.0
"""Seconds that a busy machine may add to a take-over."""


def lead(number: int, log: Path, place: argparse.Namespace) -> None:
    """Wait for the lead, work for a while, resign. A leader that lost the lead stops at once."""
    with client(place) as locks:
        election = locks.election("scheduler", value=f"candidate {number}", lease=LEASE)
        try:
            with election as leadership:
                leadership.on_lost(lambda error: print(f"candidate {number}: {error}"))
                term_ends = time.monotonic() + TERM
                while time.monotonic() < term_ends:
                    leadership.raise_if_lost()
                    note(log, leader=number, pid=os.getpid(), token=leadership.token, at=time.monotonic())
                    time.sleep(0.02)
        except LeaseLost:
            note(log, lost=number)


def watch(log: Path, place: argparse.Namespace) -> None:
    """Note who leads, as an observer sees it, until the client is closed."""
    with client(place) as locks:
        for leader in locks.election("scheduler").observe(every=0.1):
            if leader is not None:
                note(log, observed=leader.value, of=leader.token)
            elif len({fact["token"] for fact in notes(log) if "token" in fact}) == CANDIDATES:
                return


def kill_the_first(log: Path) -> float:
    """Kill the first leader in the middle of its work, as a crash would; return when."""
    end = time.monotonic() + PATIENCE
    while len(seen := notes(log)) < 10:
        if time.monotonic() > end:
            sys.exit("nobody leads")
        time.sleep(0.01)
    os.kill(seen[0]["pid"], signal.SIGKILL)
    return time.monotonic()


def judge(facts: list[dict[str, Any]], killed: float) -> list[str]:
    """Say what was broken: two leaders at the same time, a token that did not grow, a gap that is too long."""
    steps = sorted((fact for fact in facts if "leader" in fact), key=lambda fact: fact["at"])
    terms: dict[int, list[float]] = {}
    for step in steps:
        terms.setdefault(step["token"], []).append(step["at"])
    spans = [(token, min(times), max(times)) for token, times in terms.items()]
    broken = [f"leaders {a} and {b} led at the same time" for a, b in pairwise(spans) if b[1] < a[2]]
    broken += [f"token {b[0]} came after {a[0]}" for a, b in pairwise(spans) if b[0] <= a[0]]
    broken += [] if len(spans) == CANDIDATES else [f"{len(spans)} of {CANDIDATES} candidates led"]
    gap = spans[1][1] - killed if len(spans) > 1 else float("inf")
    broken += [f"nobody led for {gap:.2f} s"] if gap > LEASE + SLACK else []
    observed = [fact["of"] for fact in facts if "observed" in fact]
    broken += [f"the observer saw {b} after {a}" for a, b in pairwise(observed) if b <= a]
    broken += [f"the observer saw {token}, who never led" for token in observed if token not in terms]
    print(f"{len(spans)} leaders, one after another; {gap:.2f} s after the kill of the first the second led")
    return broken


def main() -> int:
    """Let candidates lead, kill the first, and look at the log."""
    place = arguments(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        observer = threading.Thread(target=watch, args=(log, place), daemon=True)
        observer.start()
        processes = start(CANDIDATES, lead, log, place)
        killed = kill_the_first(log)
        victim = notes(log)[0]["pid"]
        join([process for process in processes if process.pid != victim])
        observer.join(PATIENCE)
        return verdict(judge(notes(log), killed), "never two leaders, and the next within the lease")


if __name__ == "__main__":
    sys.exit(main())
