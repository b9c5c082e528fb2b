"""A process that shares the runs of one job with others: ``KIND URL NAME LEASE_MS ROOM``. Orders as in lock_peer.py.

``count N`` runs the job until it has run N times here; ``begin`` begins a run if there is none, and ``end`` ends it.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from lock_peer import Room, say

from leasehold import Client

AT_LEAST = 0.001


def begun(job: Any, ends: threading.Event) -> bool:
    """Begin a run in a thread of its own, until the event is set; return whether there is one."""
    answer = threading.Event()
    ran = list[bool]()

    def work() -> None:
        ran.append(True)
        answer.set()
        ends.wait()

    def run() -> None:
        job.run(work)
        answer.set()

    threading.Thread(target=run, daemon=True).start()
    answer.wait()
    return bool(ran)


def main() -> None:
    kind, url, name, lease, there = sys.argv[1:]
    room, ends = Room(there, name), threading.Event()
    job = Client.from_url(url).scheduled(name, at_least=AT_LEAST, at_most=int(lease) / 1000)
    say("ready")
    for line in sys.stdin:
        order, *rest = line.split()
        if order == "count":
            for _ in range(int(rest[0])):
                while not job.run(room.visit, kind, 0):
                    time.sleep(0.005)
            say("counted")
        elif order == "begin":
            ends.clear()
            say("held 0" if begun(job, ends) else "none")
        else:
            ends.set()
            time.sleep(0.1)
            say("released")


if __name__ == "__main__":
    main()
