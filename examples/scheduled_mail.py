"""Send the scheduled mail once per tick, though every instance of the service has the timer.

Four instances tick every three seconds; their clocks are up to 0.3 seconds apart, and the mail takes no time at all.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from side_by_side import arguments, client, join, note, notes, start, verdict

INSTANCES = 4
TICKS = 3
PERIOD = 3.0
APART = 0.1
"""Seconds that the clock of an instance is behind that of the one before."""


def tick(number: int, began: float, log: Path, place: argparse.Namespace) -> None:
    """Wait for each tick by this instance's clock, and try to send the mail."""
    with client(place) as locks:
        mail = locks.scheduled("mail", at_least=1.2, at_most=60)
        for this in range(1, TICKS + 1):
            time.sleep(max(0.0, began + this * PERIOD + (number - 1) * APART - time.monotonic()))
            ran = mail.run(lambda this=this: note(log, mail=this, instance=number))
            note(log, tick=this, instance=number, ran=ran)


def judge(facts: list[dict[str, Any]]) -> list[str]:
    """Say what was broken: a tick with several mails or none."""
    mails = Counter(fact["mail"] for fact in facts if "mail" in fact)
    for fact in facts:
        if "mail" in fact:
            print(f"tick {fact['mail']}: instance {fact['instance']} sent the mail")
    broken = [f"tick {this}: {mails[this]} mails" for this in range(1, TICKS + 1) if mails[this] != 1]
    said = sum(fact["ran"] for fact in facts if "tick" in fact)
    return broken + ([f"{said} instances say that they ran it"] if said != TICKS else [])


def main() -> int:
    """Tick in several processes, and look at the log."""
    place = arguments(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        join(start(INSTANCES, tick, time.monotonic() + 1.0, log, place))
        return verdict(judge(notes(log)), f"one mail in each of {TICKS} ticks of {INSTANCES} instances")


if __name__ == "__main__":
    sys.exit(main())
