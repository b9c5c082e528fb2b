"""A guarded write on etcd whose reply is lost, on a model of etcd: what its caller learns of it."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold import LeaseLost, NotHeld, StoreUnavailable
from leasehold.guards.etcd import AsyncEtcdGuard
from leasehold.stores.etcd.http.base import Unanswered
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness
from models.system import GOOD
from models.systems.etcd import EtcdSystem


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("ends", ["broken", "released"])
def test_a_lost_write_of_a_lock_that_ends_before_the_repetition_is_unknown(applied: bool, ends: str) -> None:
    """The repetition is refused; that says nothing about the first request."""

    async def body(harness: Harness) -> None:
        system = EtcdSystem(simulated, 1.0, GOOD)
        client, other = (simulated.machine(name).client(system.opener) for name in ("holder", "other"))
        hold = await client.lock("a").acquire()
        assert hold is not None
        guard = AsyncEtcdGuard(hold)
        store: Any = client._engine.store
        http: Any = store._gateway._http
        ask = http.ask

        async def lose(endpoint: Any, request: Any, until: float, **options: Any) -> Any:
            http.ask = ask
            if applied:
                await ask(endpoint, request, until, **options)
            if ends == "broken":
                assert await other.force_release("a", hold.token)
            else:
                await hold.release()
            raise Unanswered("it closed the connection")

        http.ask = lose
        with pytest.raises(StoreUnavailable, match="may have been written") as failed:
            await guard.put("data", b"1")
        assert failed.value.unknown
        with pytest.raises(LeaseLost if ends == "broken" else NotHeld):  # without a lost reply it is certain
            await guard.put("data", b"2")
        successor = await other.lock("a").acquire()
        assert successor is not None
        assert await AsyncEtcdGuard(successor).delete("data")

    simulated = SimulatedHarness(1)
    simulated.run(body)
