"""What keeps whom from going on: a client that stands still, and, where all share one file, whoever waits for it."""

from __future__ import annotations

import pytest

from leasehold._url import Secret, parse
from leasehold_lab.history import Bounds, Promise, check
from leasehold_lab.history.journal import Record
from leasehold_lab.verify.faults.client_faults import Done
from leasehold_lab.verify.report.gathering import Circumstances, gather

SERVER, FILE = parse(Secret("redis://h/0")), parse(Secret("sqlite:/tmp/x"))


def ttl(who: str, name: str, asked: float, granted: float, left: float, token: int, *, queued: float = 0.0, fair=False):
    """Return the records of one acquire and release."""
    facts = {"name": name, "mode": "exclusive", "lease": 1.0, "permits": 1, "limit": 1, "fair": fair, "nested": False}
    at: list[tuple[float, str, dict[str, object]]] = [
        (asked, "asked", facts),
        (granted, "granted", {"token": token, "since": asked}),
        (left, "leaving", {}),
        (left + 0.001, "freed", {"confirmed": True}),
    ]
    if queued:
        at.insert(1, (queued, "queued", {}))
    return [Record(t=t, who=who, n=token, **{"is": what}, **more) for t, what, more in at]


WOKEN_LATE = [*ttl("1.0", "x", 0.0, 0.1, 1.0, 1), *ttl("2.0", "x", 0.2, 2.9, 3.0, 2, queued=0.3)]
"""2.0 waits while 3 is stopped."""

OVERTAKEN = [
    *ttl("1.0", "x", 0.0, 0.1, 1.0, 1, fair=True),
    *ttl("2.0", "x", 0.2, 3.1, 3.2, 3, queued=0.3, fair=True),
    *ttl("1.0", "x", 2.9, 3.0, 3.05, 2, fair=True),
]
"""2.0 loses its place while 3 is stopped, since its renewals cannot be written."""


@pytest.mark.parametrize(("records", "promise"), [(WOKEN_LATE, Promise.WAKE_UP), (OVERTAKEN, Promise.FIFO)])
@pytest.mark.parametrize("how", ["stopped", "held up"])
def test_who_stands_still_keeps_others_from_a_file_and_not_from_a_server(
    records: list[Record], promise: Promise, how: str
) -> None:
    stop = [Done("stall", "3", 1.0, 2.8)] if how == "stopped" else []
    moment = [] if stop else [Record(t=2.8, who="3", n=0, **{"is": "held up", "for": 1.8, "whom": "3"})]

    def found(url):
        these = Circumstances(url, 1.0, ("1", "2", "3"), stop)
        return {one.promise for one in check(gather([*records, *moment], [], these), Bounds(wake_up=0.7)).violations}

    assert promise in found(SERVER)
    assert found(FILE) == set()


def test_a_moment_delays_who_waits_for_a_file_and_takes_no_place() -> None:
    moments = [
        Record(t=end, who="3", n=0, **{"is": "held up", "for": 0.3, "whom": "3"}) for end in (1.4, 1.8, 2.2, 2.6)
    ]
    these = Circumstances(FILE, 1.0, ("1", "2", "3"), [])
    assert check(gather([*WOKEN_LATE, *moments], [], these), Bounds(wake_up=0.8)).ok
    assert not check(gather([*OVERTAKEN, *moments], [], these), Bounds(wake_up=0.8)).ok
