"""Hazelcast's CP subsystem and its faults: lost answers, cancelled waits, stalls, sessions that end. Both flavors."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import subprocess
import sys
import time
import uuid
from functools import partial

import pytest
from hazelcast_members import TTL, cluster

from leasehold import AsyncClient, Client, LeaseLost
from leasehold.errors import StoreUnavailable, Unsupported
from leasehold.stores.hazelcast import sessions, upkeep
from leasehold.stores.hazelcast.connection import requests
from leasehold.stores.hazelcast.connection.driver import Call
from leasehold.stores.hazelcast.releasing import OVERTAKE
from leasehold_lab.conformance.case_context import held
from support.flavors import both
from support.patience import until, until_in
from support.steps import TO_THE_END, after_steps

SOON = 3.0
"""Seconds within which a name must be free: less than a session's time to live."""

Future = importlib.import_module("hazelcast.future").Future
errors = importlib.import_module("hazelcast.errors")

CODECS = (
    "fenced_lock_try_lock",
    "fenced_lock_unlock",
    "cp_session_heartbeat_session",
    "fenced_lock_get_lock_ownership",
)
"""The requests of an acquire, a renewal and a release, by the codec of the driver."""

WITHOUT_CP = [("hazelcast", "cp-member-count is 0"), ("hazelcast-5.5", "Enterprise edition from version 5.5")]

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def members(program):
    with cluster(program("hazelcast")[:-1]) as made:
        yield made


class Fault:
    """Lets one request of a client fail: the ``nth`` from now on of those that ``codec`` makes.

    Its answer is ``lost`` when it arrives, or the request was ``never`` sent, or it is sent ``late``, by `deliver`.
    """

    def __init__(self, client, codec, how, nth=1):
        self._store = client.store
        self._driver = client.store._driver
        self._post = self._driver.post
        self._type = importlib.import_module(f"hazelcast.protocol.codec.{codec}_codec")._REQUEST_MESSAGE_TYPE
        self._how = how
        self._left = nth
        self._kept = None
        self.hits = 0
        self._driver.post = self._fail_one

    def _fail_one(self, client, request, read, partition=-1):
        kind = int.from_bytes(request.buf[6:10], "little")
        if kind != self._type or self.hits:
            return self._post(client, request, read, partition)
        self._left -= 1
        if self._left:
            return self._post(client, request, read, partition)
        self.hits += 1
        future = Future()

        def fail():
            future.set_exception(errors.TargetDisconnectedError("the test cut it"))

        if self._how == "lost":
            self._post(client, request, read, partition).when_done(fail)
        elif self._how == "cut":  # a request that waits on the servers, and whose connection breaks
            self._post(client, request, read, partition)
            fail()
        else:
            self._kept = partial(self._post, client, request, read, partition)
            fail()
        return Call(future, self._store._runtime, self._driver.where)

    def deliver(self):
        """Send the request that is late."""
        return self._kept()


# --- lost answers --------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("how", ["lost", "never"])
@pytest.mark.parametrize(
    "codec",
    ["fenced_lock_try_lock", "fenced_lock_unlock", "cp_session_heartbeat_session", "fenced_lock_get_lock_ownership"],
)
def test_a_lost_answer_is_harmless(harness, members, namespace, codec, how):
    async def body(harness):
        client, other = harness.client(members.url), harness.client(members.url)
        before = held(await client.lock(namespace).acquire())
        await before.release()
        fault = Fault(client, codec, how)
        hold = held(await client.lock(namespace).acquire(timeout=SOON))
        assert hold.token > before.token
        assert await other.lock(namespace).acquire(blocking=False) is None
        try:
            await hold.renew()
        except StoreUnavailable:
            await hold.renew()
        assert await hold.release() is True
        assert fault.hits == 1
        again = held(await other.lock(namespace).acquire(timeout=SOON))
        assert again.token > hold.token
        await again.release()

    harness.run(body)


@both
@pytest.mark.parametrize("how", ["lost", "cut", "never"])
def test_a_wait_whose_answer_is_lost_goes_on(harness, members, namespace, how):
    async def body(harness):
        client, other = harness.client(members.url), harness.client(members.url)
        hold = held(await other.lock(namespace).acquire())
        fault = Fault(client, "fenced_lock_lock", how)
        waiter = harness.spawn(lambda: client.lock(namespace).acquire(timeout=20))
        await until_in(harness, lambda: fault.hits, SOON)
        await harness.sleep(0.3)
        await hold.release()
        got = held(await waiter.result())
        assert got.token > hold.token
        assert await other.lock(namespace).acquire(blocking=False) is None
        await got.release()
        await held(await other.lock(namespace).acquire(timeout=SOON)).release()

    harness.run(body)


@both
@pytest.mark.parametrize("codec", ["fenced_lock_try_lock", "fenced_lock_lock"])
def test_a_claim_that_arrives_after_its_release_is_undone(harness, members, namespace, codec, monkeypatch):
    monkeypatch.setattr(upkeep, "AGAIN", (0.5, 1.0))
    monkeypatch.setattr(upkeep.Upkeep.release_again, "__defaults__", (upkeep.AGAIN,))

    async def body(harness):
        client, other = harness.client(members.url), harness.client(members.url)
        keeps = held(await client.lock(f"{namespace}-other").acquire())  # keeps the session alive
        hold = None
        if codec == "fenced_lock_lock":
            hold = held(await other.lock(namespace).acquire())
        fault = Fault(client, codec, "late")
        if hold is None:
            client.store._driver.post = partial(_never, fault._fail_one, fault, client)
            with pytest.raises(StoreUnavailable):
                await client.lock(namespace).acquire(timeout=0.3)
            client.store._driver.post = fault._post
        else:
            assert await client.lock(namespace).acquire(timeout=0.3) is None
            await hold.release()
        assert fault.hits == 1
        late = fault.deliver()
        await late.signal.wait(SOON)
        got = held(await other.lock(namespace).acquire(timeout=SOON + 2))
        await got.release()
        keeps.raise_if_lost()
        await keeps.release()

    harness.run(body)


def _never(post, fault, client, *request):
    """Let all later tries fail, too: the first one alone arrives, too late."""
    kind = int.from_bytes(request[1].buf[6:10], "little")
    if fault.hits and kind == fault._type:
        future = Future()
        future.set_exception(errors.TargetDisconnectedError("the test cut it"))
        return Call(future, client.store._runtime, "nowhere")
    return post(*request)


# --- cancellations -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["acquire", "wait", "hand-over", "release"])
def test_a_cancellation_at_any_moment_leaves_no_lock(members, namespace, what):
    async def moments():
        async with AsyncClient.from_url(members.url) as locks, AsyncClient.from_url(members.url) as others:
            await held(await locks.lock(namespace).acquire()).release()
            await held(await others.lock(namespace).acquire()).release()
            first = 2 if what == "release" else 0  # a task that never began releases nothing
            for k in [*range(first, 40, 2), TO_THE_END]:
                hold = None
                if what in ("wait", "hand-over"):
                    hold = held(await others.lock(namespace).acquire())
                elif what == "release":
                    hold = held(await locks.lock(namespace).acquire())
                work = hold.release() if what == "release" else locks.lock(namespace).acquire(timeout=1.0)
                task = asyncio.create_task(work)
                if what == "hand-over":
                    await asyncio.sleep(0.02)
                    releasing = asyncio.create_task(hold.release())
                await after_steps(k, task, pauses=(0.0, 0.0, 0.0004))
                if what == "hand-over":
                    await releasing
                elif what == "wait":
                    await hold.release()
                if not task.cancelled() and what != "release" and task.result() is not None:
                    await task.result().release()
                start = asyncio.get_running_loop().time()
                got = held(await others.lock(namespace).acquire(timeout=SOON))
                assert asyncio.get_running_loop().time() - start < OVERTAKE + 0.4, k
                await got.release()
            assert not locks.store._states

    asyncio.run(moments())


def test_a_cancelled_waiter_does_not_delay_the_next_one(members, namespace):
    async def body():
        async with AsyncClient.from_url(members.url) as locks, AsyncClient.from_url(members.url) as others:
            hold = held(await others.lock(namespace).acquire())
            first, second = (asyncio.create_task(locks.lock(namespace).acquire()) for _ in range(2))
            await asyncio.sleep(0.3)
            first.cancel()
            await asyncio.wait((first,))
            start = asyncio.get_running_loop().time()
            await hold.release()
            got = held(await second)
            assert asyncio.get_running_loop().time() - start < 0.5
            await got.release()

    asyncio.run(body())


# --- sessions ------------------------------------------------------------------------------------------------------


@both
def test_the_holder_is_told_before_another_can_acquire(harness, members, namespace):
    """Its requests reach nobody any more: the local deadline comes before the end of the session on the servers."""

    async def body(harness):
        client, other = harness.client(members.url), harness.client(members.url)
        hold = held(await client.lock(namespace, lease=60).acquire())
        told = []
        hold.on_lost(lambda *_: told.append(harness.now()))
        waiter = harness.spawn(lambda: other.lock(namespace, lease=60).acquire())
        await harness.sleep(1.5)

        def cut(*_):
            raise StoreUnavailable("the test cut it", unknown=True)

        client.store._driver.post = cut
        began = harness.now()
        got = held(await waiter.result())
        acquired = harness.now()
        assert told
        assert told[0] < acquired
        assert told[0] - began < TTL
        assert acquired - began < TTL + 2.5
        with pytest.raises(LeaseLost):
            hold.raise_if_lost()
        await got.release()

    harness.run(body)


@both
def test_a_session_that_is_closed_by_an_operator_ends_its_holds(harness, members, namespace):
    async def body(harness):
        client, other = harness.client(members.url), harness.client(members.url)
        hold = held(await client.lock(namespace, lease=4.5, renew=False).acquire())  # no renewal asks for it
        waits = held(await other.lock(f"{namespace}-2").acquire())
        waiter = harness.spawn(lambda: client.lock(f"{namespace}-2").acquire(timeout=30))
        await harness.sleep(0.3)
        (session,) = client.store._sessions.all
        await other.store._driver.ask(*requests.close_session(session.group, session.id), harness.now() + 5)
        await until_in(harness, lambda: hold.lost, SOON)
        got = held(await other.lock(namespace).acquire(timeout=SOON))
        assert got.token > hold.token
        await got.release()
        await waits.release()
        await held(await waiter.result()).release()

    harness.run(body)


@both
def test_a_forced_release_is_noticed_at_the_next_renewal(harness, members, namespace):
    async def body(harness):
        client, other = harness.client(members.url), harness.client(members.url)
        hold = held(await client.lock(namespace, lease=1.5).acquire())
        info = await other.inspect(namespace)
        assert info.token == hold.token
        assert await other.force_release(namespace, hold.token)
        await until_in(harness, lambda: hold.lost, SOON)
        await held(await other.lock(namespace).acquire(timeout=SOON)).release()
        assert await other.inspect(namespace) is None

    harness.run(body)


@both
def test_a_lease_that_nobody_renews_is_released_by_the_client(harness, members, namespace):
    async def body(harness):
        client, other = harness.client(members.url), harness.client(members.url)
        hold = held(await client.lock(namespace, lease=1.0, renew=False).acquire())
        start = harness.now()
        got = held(await other.lock(namespace).acquire(timeout=SOON))
        assert 0.9 < harness.now() - start < 1.5
        assert hold.lost
        await got.release()

    harness.run(body)


@both
def test_many_failed_tries_are_not_remembered_for_ever(harness, members, namespace, monkeypatch):
    monkeypatch.setattr(sessions, "MOST_FAILED", 5)

    async def body(harness):
        client, other = harness.client(members.url), harness.client(members.url)
        kept = held(await client.lock(f"{namespace}-kept").acquire())
        (first,) = client.store._sessions.all
        hold = held(await other.lock(namespace).acquire())
        for _ in range(6):
            assert await client.lock(namespace).acquire(blocking=False) is None
        assert len(client.store._sessions.all) == 2, "the hold goes on in the first session"
        await harness.sleep(1.5)
        kept.raise_if_lost()
        await kept.release()
        await until_in(harness, lambda: first.ended, SOON + upkeep.LINGER)
        await hold.release()
        await held(await client.lock(namespace).acquire(timeout=SOON)).release()

    harness.run(body)


STALLS = """
import sys, time
from leasehold import Client
client = Client.from_url(sys.argv[1])
hold = client.lock(sys.argv[2], lease=60).acquire()
print("held", hold.token, flush=True)
for line in sys.stdin:
    print("lost" if hold.lost else "held", flush=True)
"""


@pytest.mark.parametrize("seconds", [1.0, TTL + 3.0])
def test_a_process_that_was_stopped_is_told_before_its_next_call(members, namespace, seconds):
    program = [sys.executable, "-c", STALLS, members.url, namespace]
    with (
        Client.from_url(members.url) as other,
        subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process,
    ):
        try:
            token = int(process.stdout.readline().split()[1])
            os.kill(process.pid, signal.SIGSTOP)
            time.sleep(seconds)
            got = other.lock(namespace).acquire(blocking=False)
            os.kill(process.pid, signal.SIGCONT)
            process.stdin.write("?\n")
            assert process.stdout.readline() == ("held\n" if seconds < TTL else "lost\n")
            assert (got is not None) is (seconds > TTL)
            if got is not None:
                assert got.token > token
                got.release()
        finally:
            process.kill()


def sockets():
    """Return the open connections of this process."""
    found = [os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if os.path.lexists(entry.path)]
    return {name for name in found if name.startswith("socket:")}


def test_a_forked_child_has_connections_of_its_own(members, namespace):
    before = sockets()
    with Client.from_url(members.url) as client:
        hold = client.lock(namespace).acquire()
        assert sockets() - before
        if not (pid := os.fork()):
            try:
                assert hold.lost
                assert not sockets() - before
                assert client.lock(namespace).acquire(blocking=False) is None
                client.lock(f"{namespace}-2").acquire().release()
                client.close()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        hold.raise_if_lost()
        assert hold.release()


# --- members -------------------------------------------------------------------------------------------------------


def test_a_member_that_is_killed_costs_no_hold(program, namespace):
    """Whichever it is: the leader, or the one that has the request of a waiter."""
    with cluster(program("hazelcast")[:-1]) as members, Client.from_url(members.url) as client:
        hold = client.lock(namespace).acquire()
        with Client.from_url(members.url) as other:
            waiters = [_Waiter(other, namespace) for _ in range(4)]
            time.sleep(0.5)
            members.members[0].kill()
            start = time.monotonic()
            time.sleep(TTL + 2.0)
            hold.raise_if_lost()
            assert hold.release()
            until(lambda: all(waiter.token for waiter in waiters), 30.0)
            tokens = [waiter.token for waiter in waiters]
            assert min(tokens) > hold.token
            assert len(set(tokens)) == 4
            assert time.monotonic() - start < 60


class _Waiter:
    """Acquires in a thread, and releases."""

    def __init__(self, client, name):
        threading = importlib.import_module("threading")
        self.token = 0
        self._client, self._name = client, name
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        hold = self._client.lock(self._name).acquire()
        self.token = hold.token
        hold.release()


@pytest.mark.parametrize(
    ("version", "why"),
    [("hazelcast", "cp-member-count is 0"), ("hazelcast-5.5", "Enterprise edition from version 5.5")],
)
def test_a_cluster_without_cp_is_refused(program, namespace, version, why):
    with cluster(program(version)[:-1], members=1, cp=0) as members:
        with Client.from_url(members.url) as client:
            for call in (client.lock(namespace).acquire, client.ping, client.diagnose):
                with pytest.raises(Unsupported, match=why) as refused:
                    call()
                assert "without_cp=true" in str(refused.value)
        with Client.from_url(f"{members.url}?without_cp=true") as client:
            with client.lock(namespace):
                assert client.lock(f"{namespace}-{uuid.uuid4()}").acquire(blocking=False).release()
            subjects = [finding.subject for finding in client.diagnose() if finding.severity > 1]
            assert subjects == ["without_cp"]
