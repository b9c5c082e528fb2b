"""A step of a client's wall clock makes no hold longer or shorter."""

from __future__ import annotations

import time

import pytest

from leasehold import Client
from leasehold_lab.servers import RedisServer

DAY = 86_400.0


@pytest.mark.parametrize("step", [DAY, -DAY], ids=["forward", "back"])
def test_a_step_of_the_wall_clock_changes_no_hold(
    step: float, redis_server: RedisServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, usual_ns = time.time, time.time_ns
    with (
        Client.from_url(redis_server.url, namespace=namespace) as locks,
        Client.from_url(redis_server.url, namespace=namespace) as others,
    ):
        kept = locks.lock("kept", lease=2.0).acquire()
        fixed = locks.lock("fixed", lease=2.0, renew=False).acquire()
        assert kept is not None
        assert fixed is not None
        monkeypatch.setattr(time, "time", lambda: usual() + step)
        monkeypatch.setattr(time, "time_ns", lambda: usual_ns() + int(step * 1e9))
        kept.raise_if_lost()
        assert 0 < fixed.remaining <= 2.0
        assert others.lock("fixed").acquire(timeout=0) is None
        time.sleep(2.2)
        kept.raise_if_lost()
        assert fixed.lost, "it ends with its lease, not a day later"
        assert others.lock("kept").acquire(timeout=0) is None
        later = others.lock("fixed").acquire(timeout=1.0)
        assert later is not None
        assert later.token > fixed.token
        later.release()
        kept.release()
