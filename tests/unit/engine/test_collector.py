"""The garbage collector runs finalizers, and so lets other threads run, wherever objects are made."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from leasehold import Client
from leasehold._engine.lease import Lease
from leasehold._engine.request import AcquireRequest


def lease_of(client: Client, name: str) -> Lease:
    return client._core._engine.lease(AcquireRequest(name, client.lock(name)._core._options.terms)).lease


def test_a_ticket_registered_while_the_collector_runs_disturbs_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    with Client.from_url("memory:test-collector") as client:
        timers = client._core._engine.watchdog._timers
        leases = [lease_of(client, f"a{number}") for number in range(100)]
        meanwhile = [lease_of(client, f"b{number}") for number in range(100)]
        came = list[Lease]()

        def another_thread_registers(phase: str, info: dict[str, Any]) -> None:
            if phase == "stop" and len(came) < len(meanwhile):
                came.append(meanwhile[len(came)])
                timers.fresh[came[-1]] = 0.0

        timers.fresh.update(dict.fromkeys(leases, 0.0))
        before = gc.get_threshold()
        gc.callbacks.append(another_thread_registers)
        gc.set_threshold(1, 1, 1)
        try:
            timers.add_fresh()
        finally:
            gc.set_threshold(*before)
            gc.callbacks.remove(another_thread_registers)
        assert came, "the collector ran meanwhile"
        assert set(leases) <= set(timers.watched)
        for lease in (*leases, *meanwhile):
            client._core._engine.watchdog.forget(lease)
