"""The keys of the etcd store, what is left of them, and the keys of other programs."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest

from leasehold import AsyncClient, Client, NameInUse, Unsupported
from leasehold.stores.etcd.keys import Keys, decode_part, encode_part
from support.patience import until


def test_keys_have_the_layout_of_go(etcd_server, namespace):
    with Client.from_url(etcd_server.url, namespace=namespace) as locks, locks.lock("a/b %ü") as hold:
        (key,) = etcd_server.keys(f"leasehold/{namespace}/")
        name, _, entry = key.rpartition("/")
        lease, _, ticket = entry.partition("-")
        assert name == f"leasehold/{namespace}/lock/a%2Fb %25ü"
        assert int(lease, 16) in etcd_server.leases()
        assert len(ticket) == 22
        said = json.loads(etcd_server.ctl("get", key, "-w", "json"))
        assert said["kvs"][0]["create_revision"] == hold.token == said["kvs"][0]["mod_revision"]
        assert said["kvs"][0]["lease"] == int(lease, 16)
        assert etcd_server.keys(f"leasehold/{namespace}/lock/a%2Fb %25ü/") == [key]


def test_the_path_of_the_url_is_the_first_part_of_all_keys(etcd_server, namespace):
    with Client.from_url(f"{etcd_server.url}/my/{namespace}") as locks, locks.lock("x"):
        (key,) = etcd_server.keys(f"my/{namespace}/")
        assert key.startswith(f"my/{namespace}/default/lock/x/")


def test_locks_use_the_prefix_of_another_program(etcd_server, namespace):
    with Client.from_url(f"{etcd_server.url}?locks=/jobs-{namespace}/") as locks, locks.lock("nightly"):
        assert len(etcd_server.keys(f"/jobs-{namespace}/nightly/")) == 1
        assert [info.name for info in locks.holds()] == ["nightly"]
        assert locks.versioned("v").put("value") == 1
    assert etcd_server.keys(f"/jobs-{namespace}/") == []


def test_names_are_encoded_injectively():
    names = ["a", "a/b", "a%2Fb", "a%", "%", "/", "a b", "ü/ключ", "\n", "a\x00b", "%25", "a%2fb"]
    assert len({encode_part(name) for name in names}) == len(names)
    assert [decode_part(encode_part(name)) for name in names] == names
    assert all("/" not in encode_part(name) and "\n" not in encode_part(name) for name in names)
    keys = Keys("l/", "c/", "g/", "m/")
    assert [keys.name_of(f"{keys.queue(name)}entry") for name in names] == names
    assert keys.name_of("l/a/b/entry") is None


def test_closing_leaves_no_key_and_no_lease(etcd_server, namespace):
    async def body():
        async with AsyncClient.from_url(etcd_server.url, namespace=namespace) as locks:
            await locks.lock("a").acquire()
            await locks.lock("b", renew=False).acquire()
            await locks.rw_lock("c").reader().acquire()
            waiting = asyncio.ensure_future(locks.lock("a").acquire())
            await asyncio.sleep(0.2)
        with pytest.raises(RuntimeError):  # it was refused, or had the lock for a moment while the client closed
            (await waiting).raise_if_lost()

    before = set(etcd_server.leases())
    asyncio.run(body())
    assert etcd_server.keys(f"leasehold/{namespace}/") == []
    assert set(etcd_server.leases()) == before


def test_a_lock_delay_is_refused(etcd_server):
    with Client.from_url(etcd_server.url) as locks, pytest.raises(Unsupported, match="delay"):
        locks.lock("x", lock_delay=1.0)


# --- other programs ----------------------------------------------------------------------------------------------


def test_a_holder_of_another_program_is_shown_waited_for_and_broken(etcd_server, namespace):
    """As Go's Mutex stands there: a key named by its lease, with an empty value."""
    lease = etcd_server.ask("/v3/lease/grant", {"TTL": "60"})["ID"]
    key = f"leasehold/{namespace}/lock/x/{int(lease):x}"
    etcd_server.ctl("put", f"--lease={int(lease):x}", key, "")
    with Client.from_url(etcd_server.url, namespace=namespace) as locks:
        assert locks.lock("x").acquire(blocking=False) is None
        info = locks.inspect("x")
        (holder,) = info.holders
        assert holder.host == "lease"
        assert f"{int(lease):x}" in holder.owner
        assert 50 < holder.remaining <= 60
        assert [one.name for one in locks.holds()] == ["x"]
        with pytest.raises(NameInUse):
            locks.rw_lock("x").reader().acquire(timeout=1)
        got = []
        waiter = threading.Thread(target=lambda: got.append(locks.lock("x").acquire()))
        waiter.start()
        until(lambda: len(locks.inspect("x").waiters) == 1, 5.0)
        assert not locks.force_release("x", info.token + 1)
        assert locks.force_release("x", info.token)
        waiter.join()
        assert got[0].token > info.token
        got[0].release()
    etcd_server.ask("/v3/lease/revoke", {"ID": lease})


def test_an_election_below_the_name_counts_as_a_holder(etcd_server, namespace):
    etcd_server.ctl("put", f"leasehold/{namespace}/lock/x/77", "proposal")
    with Client.from_url(etcd_server.url, namespace=namespace) as locks:
        assert locks.lock("x").acquire(timeout=0.1) is None
        assert locks.lock("x").locked()
        assert locks.force_release("x", locks.inspect("x").token)
        locks.lock("x").acquire(timeout=5).release()


# --- the command line --------------------------------------------------------------------------------------------


def test_doctor_checks_the_cluster(etcd_server, namespace):
    with Client.from_url(etcd_server.url, namespace=namespace) as locks:
        findings = {finding.subject: finding for finding in locks.diagnose()}
    assert etcd_server.version.removeprefix("etcd ") in findings["etcd server"].found
    assert findings["members"].found == "1 voting"
    assert "3" in findings["members"].remedy or "three" in findings["members"].remedy
    assert findings["alarms"].found == "none"
    assert findings["shortest lease"].found == "1 s"
    assert "leader" in findings[f"member 127.0.0.1:{etcd_server.port}"].found
