"""Guarded writes to etcd are made only while the lock is held, whatever clocks and pauses do."""

from __future__ import annotations

import asyncio
import base64
import time

import pytest

from leasehold import AsyncClient, Client, LeaseLost, NotHeld
from leasehold.guards.etcd import AsyncEtcdGuard, EtcdGuard, comparison
from leasehold_lab.proxy.proxy import FaultProxy


def value(server, key: str) -> bytes | None:
    said = server.ask("/v3/kv/range", {"key": base64.b64encode(key.encode()).decode()})
    return base64.b64decode(said["kvs"][0]["value"]) if said.get("kvs") else None


def break_of(server, namespace: str) -> None:
    server.ctl("del", "--prefix", f"leasehold/{namespace}/lock/x/")


@pytest.mark.parametrize("kind", ["lock", "writer", "permit"])
def test_a_write_is_made_while_the_lock_is_held_and_not_after(etcd_server, namespace, kind):
    key = f"data/{namespace}"
    make = {
        "lock": lambda locks: locks.lock("x"),
        "writer": lambda locks: locks.rw_lock("x").writer(),
        "permit": lambda locks: locks.semaphore("x", 1).permits(1),
    }[kind]
    with (
        Client.from_url(etcd_server.url, namespace=namespace) as locks,
        Client.from_url(etcd_server.url, namespace=namespace) as others,
    ):
        hold = make(locks).acquire()
        guard = EtcdGuard(hold)
        assert guard.put(key, b"first") > hold.token
        assert value(etcd_server, key) == b"first"
        break_of(etcd_server, namespace)
        hold.raise_if_lost()  # it has not noticed the loss yet
        with pytest.raises(LeaseLost) as failed:
            guard.put(key, b"late")
        assert failed.value.token == hold.token
        successor = make(others).acquire(timeout=5)
        EtcdGuard(successor).put(key, b"second")
        with pytest.raises(LeaseLost):
            guard.delete(key)
        assert value(etcd_server, key) == b"second"
        assert EtcdGuard(successor).delete(key)
        assert value(etcd_server, key) is None
        successor.release()


def test_a_guarded_key_can_have_a_lease_of_its_own(etcd_server, namespace):
    key = f"data/{namespace}"
    lease = int(etcd_server.ask("/v3/lease/grant", {"TTL": "60"})["ID"])
    with Client.from_url(etcd_server.url, namespace=namespace) as locks, locks.lock("x") as hold:
        EtcdGuard(hold).put(key, b"1", lease=lease)
    assert value(etcd_server, key) == b"1", "it does not end with the lock"

    async def body() -> None:
        async with AsyncClient.from_url(etcd_server.url, namespace=namespace) as locks, locks.lock("x") as hold:
            await AsyncEtcdGuard(hold).put(key, b"2", lease=lease)
            assert value(etcd_server, key) == b"2"
            etcd_server.ask("/v3/lease/revoke", {"ID": str(lease)})
            assert value(etcd_server, key) is None
            await AsyncEtcdGuard(hold).put(key, b"3")

    asyncio.run(body())
    assert value(etcd_server, key) == b"3"


def test_a_released_hold_writes_nothing(etcd_server, namespace):
    with Client.from_url(etcd_server.url, namespace=namespace) as locks:
        hold = locks.lock("x").acquire()
        guard = EtcdGuard(hold)
        hold.release()
        with pytest.raises(NotHeld):
            guard.put("data/x", b"late")
        with pytest.raises(NotHeld):
            comparison(hold)


def test_the_comparison_works_in_a_transaction_of_the_user(etcd_server, namespace):
    key = base64.b64encode(f"data/{namespace}".encode()).decode()
    with Client.from_url(etcd_server.url, namespace=namespace) as locks:
        hold = locks.lock("x").acquire()
        compare = comparison(hold)
        assert compare.revision == hold.token
        assert compare.target == "CREATE"
        assert etcd_server.keys(f"leasehold/{namespace}/lock/") == [compare.key]
        body = {"compare": [compare.json()], "success": [{"request_put": {"key": key, "value": key}}]}
        assert etcd_server.ask("/v3/kv/txn", body)["succeeded"]
        hold.release()
        assert "succeeded" not in etcd_server.ask("/v3/kv/txn", body)
        with locks.lock("x"):
            assert "succeeded" not in etcd_server.ask("/v3/kv/txn", body)


def test_a_holder_that_was_partitioned_beyond_its_lease_writes_nothing(etcd_server, namespace):
    """Its clock does not matter: even the hold's own check is left out here."""
    key = f"data/{namespace}"
    with FaultProxy(etcd_server.port) as proxy:
        where = f"etcd://127.0.0.1:{proxy.port}"
        with (
            Client.from_url(where, namespace=namespace, response_timeout=0.5) as slow,
            Client.from_url(etcd_server.url, namespace=namespace) as locks,
        ):
            guard = EtcdGuard(slow.lock("x", lease=1.0).acquire())
            proxy.blackhole()
            with locks.lock("x", timeout=20) as successor:
                EtcdGuard(successor).put(key, b"new")
                proxy.heal()
                with pytest.raises(LeaseLost):
                    guard.put(key, b"old")
            assert value(etcd_server, key) == b"new"


def test_a_write_whose_reply_is_lost_is_repeated(etcd_server, namespace):
    with FaultProxy(etcd_server.port) as proxy:
        where = f"etcd://127.0.0.1:{proxy.port}"
        with Client.from_url(where, namespace=namespace) as locks, locks.lock("x") as hold:
            lost = proxy.drop_reply(where=b"POST /v3/kv/txn")
            EtcdGuard(hold).put(f"data/{namespace}", b"v")
            assert lost.hits == 1
    assert value(etcd_server, f"data/{namespace}") == b"v"


def test_asyncio(etcd_server, namespace):
    async def body():
        async with AsyncClient.from_url(etcd_server.url, namespace=namespace) as locks:
            hold = await locks.lock("x").acquire()
            guard = AsyncEtcdGuard(hold)
            await guard.put(f"data/{namespace}", b"v")
            await asyncio.to_thread(break_of, etcd_server, namespace)
            with pytest.raises(LeaseLost):
                await guard.put(f"data/{namespace}", b"late")

    asyncio.run(body())
    assert value(etcd_server, f"data/{namespace}") == b"v"


def test_other_holds_are_refused(etcd_server, namespace):
    with Client.from_url("memory:guard") as locks, locks.lock("x") as hold, pytest.raises(TypeError, match="etcd"):
        EtcdGuard(hold)
    with pytest.raises(TypeError):
        comparison("x")


def test_no_update_is_lost_when_leases_expire(etcd_server, namespace):
    """Holders overstay on purpose; each addition that was confirmed counts, and no other."""
    key, confirmed = f"data/{namespace}", 0
    etcd_server.ctl("put", key, "0")
    with Client.from_url(etcd_server.url, namespace=namespace) as locks:
        for turn in range(4):
            hold = locks.lock("x", lease=1.0, renew=False).acquire(timeout=20)
            guard, seen = EtcdGuard(hold), int(value(etcd_server, key))
            if turn % 2:
                time.sleep(2.2)
            try:
                guard.put(key, b"%d" % (seen + 1))
                confirmed += 1
                hold.release()
            except LeaseLost:
                pass
    assert int(value(etcd_server, key)) == confirmed == 2
