"""Hazelcast's CP sessions, members and editions: notices of losses, and refusals. Both flavors."""

from __future__ import annotations

import importlib
import os
import signal
import socket
import subprocess
import sys
import time
from functools import partial

import pytest
from hazelcast_members import CALL_TIMEOUT, TTL, cluster

from leasehold import Client, LeaseLost
from leasehold._model import Severity
from leasehold.errors import StoreUnavailable, Unsupported
from leasehold.stores._common import upkeep_job
from leasehold.stores.hazelcast import sessions
from leasehold.stores.hazelcast.connection import requests
from leasehold.stores.hazelcast.connection.driver import CONNECT_WITHIN
from leasehold_lab.conformance.case_context import held
from support.flavors import both
from support.patience import until, until_in

SOON = 3.0
"""Seconds within which a name must be free: less than a session's time to live."""

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def members(program):
    with cluster(program("hazelcast")[:-1]) as made:
        yield made


# --- sessions ------------------------------------------------------------------------------------------------------


@both
def test_the_holder_is_told_before_another_can_acquire(harness, members, namespace):
    """Its requests reach no member any more: the local deadline comes before the end of the session on the servers."""

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
def test_a_client_that_was_idle_goes_on_without_the_session_that_the_servers_have_closed(harness, members, namespace):
    async def body(harness):
        client, other = harness.client(members.url), harness.client(members.url)
        await held(await client.lock(namespace).acquire()).release()
        (session,) = client.store._sessions.all
        await other.ping()
        await other.store._driver.ask(*requests.close_session(session.group, session.id), harness.now() + 5)
        assert await client.diagnose()
        assert await client.inspect(namespace) is None
        await held(await client.lock(namespace).acquire(timeout=SOON)).release()
        assert session.ended

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
        await until_in(harness, lambda: first.ended, SOON + upkeep_job.LINGER)
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


@both
def test_a_member_that_accepts_connections_and_does_not_answer_costs_others_little(
    harness, members, namespace, monkeypatch
):
    """It is the first one that the driver tries, and its login has no answer; the time of one request may end by it."""

    async def body(harness):
        client = harness.client(url)
        start = harness.now()
        with pytest.raises(StoreUnavailable):
            await client.lock(namespace).acquire(timeout=0.5)
        assert harness.now() - start < SOON
        await held(await client.lock(namespace).acquire(timeout=CONNECT_WITHIN)).release()

    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]

        def silent_first(found):
            found.sort(key=lambda one: getattr(one, "address", one).port != port)

        monkeypatch.setattr(importlib.import_module("hazelcast.connection").random, "shuffle", silent_first)
        url = members.url.replace("hazelcast://", f"hazelcast://127.0.0.1:{port},")
        harness.run(body)


def test_the_time_limit_of_the_first_request_is_not_that_of_the_connections(members, namespace):
    with Client.from_url(members.url) as client:
        client.lock(namespace).acquire(timeout=2.0).release()
        assert client.store._driver._client._config.connection_timeout == CONNECT_WITHIN


@both
def test_a_wait_lasts_longer_than_a_request_may_take_on_the_servers(harness, members, namespace):
    async def body(harness):
        client, other = harness.client(members.url), harness.client(members.url)
        hold = held(await client.lock(namespace, lease=4).acquire())
        waiter = harness.spawn(lambda: other.lock(namespace, lease=4).acquire())
        await harness.sleep(CALL_TIMEOUT + 2.0)
        hold.raise_if_lost()
        start = harness.now()
        await hold.release()
        await held(await waiter.result()).release()
        assert harness.now() - start < SOON

    harness.run(body)


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
    with cluster(program(version)[:-1], members=1, cp=0) as members, Client.from_url(members.url) as client:
        for call in (client.lock(namespace).acquire, client.ping, lambda: client.holds("")):
            with pytest.raises(Unsupported, match=why) as refused:
                call()
            assert "another store" in str(refused.value)
        found = {finding.subject: finding for finding in client.diagnose()}
        assert why in found["CP subsystem"].found
        assert found["CP subsystem"].severity is Severity.ERROR
        assert "cp-member-count" in found["CP subsystem"].remedy


@both
def test_a_client_recovers_from_members_that_did_not_answer(harness, program, namespace):
    """All are stopped for longer than a session: the holder is notified in time, and the client continues."""

    async def body(harness):
        client = harness.client(members.url, response_timeout=30)
        hold = held(await client.lock(namespace, lease=60).acquire())
        told = []
        hold.on_lost(lambda *_: told.append(harness.now()))
        began = harness.now()
        for member in members.members:
            member.pause()
        await until_in(harness, lambda: told, TTL)
        assert told[0] - began < TTL
        waiting = [harness.spawn(partial(client.lock(f"{namespace}-{one}").acquire, timeout=60)) for one in range(5)]
        late = harness.spawn(lambda: client.lock(f"{namespace}-6").acquire(timeout=1.0))
        await harness.sleep(began + TTL + 4 - harness.now())  # all connections are lost meanwhile
        with pytest.raises(StoreUnavailable):
            await late.result()
        for member in members.members:
            member.resume()
        for one in waiting:
            await held(await one.result()).release()
        again = held(await client.lock(namespace).acquire(timeout=60))
        assert again.token > hold.token
        await again.release()

    with cluster(program("hazelcast")[:-1]) as members:
        harness.run(body)
