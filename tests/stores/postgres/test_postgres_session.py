"""``mode=session``: freed the moment a process dies; cancellation, forks, and what is shown."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from types import SimpleNamespace

import pytest

from leasehold import AsyncClient, Client, LeaseholdError, Unsupported
from leasehold.stores.postgres.advisory import key_of
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import PostgresServer
from support.descriptors import WatchedHarness
from support.steps import TO_THE_END, after_steps
from support.stores.killed_clients import parties

flavors = pytest.mark.parametrize("flavor", ["blocking", "asyncio"])

NOISE = 1.0
STEPS = 30


@pytest.fixture
def sessions(postgres_server: PostgresServer) -> SimpleNamespace:
    return SimpleNamespace(url=f"{postgres_server.url}?mode=session", query=postgres_server.query)


ADVISORY = "locktype = 'advisory' AND (classid::bigint << 32) | objid::bigint = %s"


def locks_of(sessions: SimpleNamespace, namespace: str, name: str = "x") -> int:
    """Return how many sessions have, or wait for, the lock of a name, as the server says."""
    text = f"SELECT count(*) FROM pg_locks WHERE {ADVISORY}"
    return int(sessions.query(text, (key_of(namespace, name),))[0][0])


@flavors
def test_a_killed_holders_lock_is_free_at_once(sessions: SimpleNamespace, namespace: str, flavor: str) -> None:
    with parties() as start, Client.from_url(sessions.url, namespace=namespace) as locks:
        holder = start(sessions, namespace, flavor, "hold", 30.0, "x")
        while "token" not in (said := holder.hear()):
            pass
        waiter = start(sessions, namespace, flavor, "wait", 30.0, "x")
        until = time.monotonic() + 20
        while (info := locks.inspect("x")) is None or len(info.waiters) != 1:
            assert time.monotonic() < until
            time.sleep(0.02)
        killed = holder.kill()
        while "token" not in (next_waiter := waiter.hear()):
            pass
        assert next_waiter["token"] > said["token"]
        assert next_waiter["at"] - killed < NOISE


def test_cancelling_at_each_step_leaves_no_lock(sessions: SimpleNamespace, namespace: str) -> None:
    async def body() -> None:
        async with (
            AsyncClient.from_url(sessions.url, namespace=namespace) as locks,
            AsyncClient.from_url(sessions.url, namespace=namespace) as others,
        ):
            outcomes = set()
            for k in (*range(STEPS), TO_THE_END):
                hold = await others.lock("x").acquire(timeout=5) if k % 2 else None
                task = asyncio.ensure_future(locks.lock("x").acquire())
                await after_steps(k, task)
                if hold is not None:
                    await hold.release()
                if not task.cancelled():
                    got = task.result()
                    assert got is not None
                    await got.release()
                outcomes.add(task.cancelled())
                end = asyncio.get_running_loop().time() + 1.0 + NOISE
                while locks_of(sessions, namespace):
                    assert asyncio.get_running_loop().time() < end, "a lock is left behind"
                    await asyncio.sleep(0.01)
            assert outcomes == {True, False}

    asyncio.run(body())
    assert locks_of(sessions, namespace) == 0


def test_a_forked_child_frees_nothing_of_its_parent(sessions: SimpleNamespace, namespace: str) -> None:
    with Client.from_url(sessions.url, namespace=namespace) as locks:
        hold = locks.lock("x").acquire(timeout=5)
        assert hold is not None
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = 0 if locks.lock("x").acquire(timeout=0.2) is None else 2
                locks.close()
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        hold.renew()
        assert locks_of(sessions, namespace) == 1
        hold.release()
        assert locks_of(sessions, namespace) == 0


def test_what_a_session_cannot_promise_is_refused(sessions: SimpleNamespace, namespace: str) -> None:
    with Client.from_url(sessions.url, namespace=namespace) as locks:
        with pytest.raises(Unsupported):
            locks.lock("x", lock_delay=5.0)
        with pytest.raises(Unsupported):
            locks.rw_lock("x")
        with pytest.raises(Unsupported):
            locks.semaphore("x", 3)


def test_keys_are_fixed_and_separate_namespace_and_name() -> None:
    """Programs that compute the keys themselves rely on it."""
    assert key_of("default", "stock:42") == -5011702334443919841
    pairs = [("a", "bc"), ("ab", "c"), ("", "abc"), ("default", "x"), ("default", "X"), ("default", "x ")]
    assert len({key_of(*pair) for pair in pairs}) == len(pairs)
    assert all(-(2**63) <= key_of(*pair) < 2**63 for pair in pairs)


def test_names_with_one_key_exclude_each_other_and_no_more(
    sessions: SimpleNamespace, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a collision of the 64 bits would cost: waiting that was not needed, and never two holders of a name."""
    monkeypatch.setattr("leasehold.stores.postgres.advisory.key_of", lambda namespace, name: 4711)
    with (
        Client.from_url(sessions.url, namespace=namespace) as locks,
        Client.from_url(sessions.url, namespace=namespace) as others,
    ):
        first = locks.lock("a").acquire(timeout=5)
        assert first is not None
        assert others.lock("b").acquire(timeout=0.2) is None
        first.release()
        second = others.lock("b").acquire(timeout=5)
        assert second is not None
        info = locks.inspect("b")
        assert info is not None
        assert [holder.token for holder in info.holders] == [second.token]
        assert locks.inspect("a") is None
        second.release()


def test_a_cancelled_release_leaves_the_socket_to_a_renewal_that_waits_on_it(
    sessions: SimpleNamespace, namespace: str
) -> None:
    async def body(harness: Harness) -> None:
        locks, others = (harness.client(sessions.url, namespace=namespace) for _ in range(2))
        hold = await locks.lock("x").acquire(timeout=5)
        assert hold is not None
        ((backend,),) = sessions.query(f"SELECT pid FROM pg_locks WHERE {ADVISORY}", (key_of(namespace, "x"),))
        os.kill(backend, signal.SIGSTOP)  # so that it does not answer
        try:
            renewal = asyncio.ensure_future(hold.renew())
            await asyncio.sleep(0.05)
            release = asyncio.ensure_future(hold.release())
            await asyncio.sleep(0.05)
            release.cancel()
            await asyncio.wait((release,))
            other = await others.lock("y").acquire(timeout=5)  # on new connections, with the number of a closed one
            assert other is not None
            with pytest.raises(LeaseholdError):
                await asyncio.wait_for(renewal, 5)
            await other.release()
        finally:
            os.kill(backend, signal.SIGCONT)
        assert release.cancelled()
        async with asyncio.timeout(5):
            await (await others.lock("x").acquire()).release()  # type: ignore[union-attr]

    WatchedHarness().run(body)


def test_names_that_nobody_uses_are_forgotten(server: PostgresServer) -> None:
    """Where all clients have ``mode=session``, no other client sweeps."""
    url = f"{server.url}?mode=session"
    with Client.from_url(url) as client:
        for number in range(3):
            with client.lock(f"old {number}"):
                pass
    server.execute("UPDATE leasehold_name SET used = 1")
    with Client.from_url(url) as client, client.lock("new"):
        pass
    assert server.query("SELECT convert_from(name, 'UTF8') FROM leasehold_name") == [("new",)]
