"""Fetch an access token once for all instances, and renew it early: no stampede, and no caller waits for the renewal.

Four processes use a token for 5 seconds; one is good for 1.5 seconds, and the partner's server takes 0.2 to issue it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from side_by_side import arguments, client, join, note, notes, start, verdict

PROCESSES = 4
TTL = 1.5
EARLY = 0.75
SECONDS = 5.0


def use_tokens(number: int, log: Path, place: argparse.Namespace) -> None:
    """Call the partner again and again, each time with the token that is good now."""

    def fetch() -> dict[str, Any]:
        began = time.monotonic()
        time.sleep(0.2)
        note(log, fetched=number, began=began, ended=time.monotonic())
        return {"token": f"token of process {number} at {began:.3f}", "issued": began, "expires_in": TTL}

    with client(place) as locks:
        token = locks.cached("partner-token", lambda answer: answer["expires_in"], fetch, early=EARLY)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            asked = time.monotonic()
            value = token.get()
            note(log, used=number, asked=asked, age=asked - value["issued"], token=value["token"])
            time.sleep(0.02)


def judge(facts: list[dict[str, Any]]) -> list[str]:
    """Say what was broken: fetches at the same time, too many of them, tokens used after their end."""
    fetches = sorted((fact for fact in facts if "fetched" in fact), key=lambda fact: fact["began"])
    uses = [fact for fact in facts if "used" in fact]
    most = int(SECONDS / (TTL - EARLY)) + 2
    broken = [f"two fetched at the same time: {a} {b}" for a, b in pairwise(fetches) if b["began"] < a["ended"]]
    broken += [f"{len(fetches)} fetches, {most} are enough"] if len(fetches) > most else []
    broken += [f"a token of {use['age']:.3f} s was used" for use in uses if use["age"] > TTL]
    broken += [] if {use["used"] for use in uses} == set(range(1, PROCESSES + 1)) else ["not all had a token"]
    print(f"{len(uses)} uses in {PROCESSES} processes, {len(fetches)} fetches, oldest token used: ", end="")
    print(f"{max(use['age'] for use in uses):.2f} s of {TTL} s")
    return broken


def main() -> int:
    """Use tokens in several processes, and look at the log."""
    place = arguments(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        join(start(PROCESSES, use_tokens, log, place))
        return verdict(judge(notes(log)), "one fetched at a time, all used it, none after its end")


if __name__ == "__main__":
    sys.exit(main())
