"""A paused client excuses late grants to others only if all clients share one file."""

from __future__ import annotations

import pytest

from leasehold._url import Secret, parse
from leasehold_lab.history import Bounds, Promise, check
from leasehold_lab.history.journal import Record
from leasehold_lab.verify.faults.client_faults import InjectedFault
from leasehold_lab.verify.report.run_history import RunConditions, build_history

SERVER, FILE = parse(Secret("redis://h/0")), parse(Secret("sqlite:/tmp/x"))


def operation(
    who: str, name: str, asked: float, granted: float, left: float, token: int, *, queued: float = 0.0, fair=False
):
    """Return the records of one acquire and release."""
    fields = {"name": name, "mode": "exclusive", "lease": 1.0, "permits": 1, "limit": 1, "fair": fair, "nested": False}
    at: list[tuple[float, str, dict[str, object]]] = [
        (asked, "asked", fields),
        (granted, "granted", {"token": token, "since": asked}),
        (left, "leaving", {}),
        (left + 0.001, "freed", {"confirmed": True}),
    ]
    if queued:
        at.insert(1, (queued, "queued", {}))
    return [Record(t=t, who=who, n=token, **{"is": what}, **more) for t, what, more in at]


WOKEN_LATE = [*operation("1.0", "x", 0.0, 0.1, 1.0, 1), *operation("2.0", "x", 0.2, 2.9, 3.0, 2, queued=0.3)]
"""2.0 waits while 3 is stopped."""

OVERTAKEN = [
    *operation("1.0", "x", 0.0, 0.1, 1.0, 1, fair=True),
    *operation("2.0", "x", 0.2, 3.1, 3.2, 3, queued=0.3, fair=True),
    *operation("1.0", "x", 2.9, 3.0, 3.05, 2, fair=True),
]
"""2.0 loses its queue entry while 3 is stopped, since its renewals cannot be written."""


@pytest.mark.parametrize(("records", "promise"), [(WOKEN_LATE, Promise.WAKE_UP), (OVERTAKEN, Promise.FIFO)])
@pytest.mark.parametrize("how", ["stopped", "held up"])
def test_a_paused_client_blocks_others_on_a_file_but_not_on_a_server(
    records: list[Record], promise: Promise, how: str
) -> None:
    stop = [InjectedFault("stall", "3", 1.0, 2.8)] if how == "stopped" else []
    moment = [] if stop else [Record(t=2.8, who="3", n=0, **{"is": "held up", "for": 1.8, "whom": "3"})]

    def found(url):
        these = RunConditions(url, 1.0, ("1", "2", "3"), stop)
        return {
            one.promise for one in check(build_history([*records, *moment], [], these), Bounds(wake_up=0.7)).violations
        }

    assert promise in found(SERVER)
    assert found(FILE) == set()


def test_short_pauses_delay_waiters_on_a_file_but_lose_no_queue_entry() -> None:
    moments = [
        Record(t=end, who="3", n=0, **{"is": "held up", "for": 0.3, "whom": "3"}) for end in (1.4, 1.8, 2.2, 2.6)
    ]
    these = RunConditions(FILE, 1.0, ("1", "2", "3"), [])
    assert check(build_history([*WOKEN_LATE, *moments], [], these), Bounds(wake_up=0.8)).ok
    assert not check(build_history([*OVERTAKEN, *moments], [], these), Bounds(wake_up=0.8)).ok
