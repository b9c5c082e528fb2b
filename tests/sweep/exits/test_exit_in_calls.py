"""An exception at every step of a call that locks by itself, where the object of the call lives on, as in a module.

Whoever calls it next gets the lock within the lease.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable
from types import CodeType
from typing import Any

import pytest

from leasehold import Client
from leasehold.primitives.calls import scheduled
from leasehold.stores.memory import Memory
from support.striking import Striking, ended_by

LEASE = 1.5
"""Seconds."""


def cached(client: Client, name: str) -> Callable[[], object]:
    return client.cached(name, 60, lambda: "new", lease=LEASE).get


def early(client: Client, name: str) -> Callable[[], object]:
    value = client.cached(name, 60, lambda: "new", early=59.999, lease=LEASE)
    value.get()
    time.sleep(0.002)  # so that it is fetched early
    return value.get


def once(client: Client, name: str) -> Callable[[], object]:
    payment = client.once(name, ttl=60, lease=LEASE)
    return lambda: payment.run(lambda: "paid")


def tick(client: Client, name: str) -> Callable[[], object]:
    job = client.scheduled(name, at_most=60)
    return lambda: job.run(lambda: None, tick=1)


def synchronized(client: Client, name: str) -> Callable[[], object]:
    return client.synchronized(name, lease=LEASE)(lambda: None)


CALLS = [cached, early, once, tick, synchronized]


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # it was about to be
@pytest.mark.parametrize("make", CALLS)
def test_an_exit_in_a_call_keeps_nobody_out_though_its_object_lives_on(
    make: Callable[[Client, str], Callable[[], object]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    record_property: Callable[[str, object], None],
) -> None:
    monkeypatch.setattr(scheduled, "DEFAULT_LEASE", LEASE)  # of a job that is renewed
    caplog.set_level(logging.CRITICAL, "leasehold")  # what was dropped is warned of
    memory, known = Memory(f"exit in {make.__name__}"), dict[CodeType, set[int]]()
    living, where = list[Any](), dict[str, str]()
    with Client(memory) as client, Client(memory) as looker:
        for at in itertools.count():
            living.append(make(client, f"name {at}"))
            striking = Striking(at, known, SystemExit)
            with ended_by(striking):
                living[-1]()
            if not striking.where:
                break
            where[f"name {at}"] = striking.where
        until = time.monotonic() + LEASE + 1.0
        while (left := looker.holds()) and time.monotonic() < until:
            time.sleep(0.05)
        assert [where[info.name.rpartition("/")[2]] for info in left] == []
    record_property("sum:exits at a step", len(where))
    assert len(where) > 50
