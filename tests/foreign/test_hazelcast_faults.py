"""Hazelcast's CP subsystem and its faults: lost answers, late claims, cancelled waits. Both flavors."""

from __future__ import annotations

import asyncio
import importlib
from functools import partial

import pytest
from hazelcast_members import cluster

from leasehold import AsyncClient, Cancellation
from leasehold.errors import StoreUnavailable
from leasehold.stores.hazelcast import upkeep
from leasehold.stores.hazelcast.connection.driver import Call
from leasehold_lab.conformance.case_context import held
from support.flavors import both
from support.patience import until_in
from support.steps import TO_THE_END, after_steps

SOON = 3.0
"""Seconds within which a name must be free: less than a session's time to live."""

Future = importlib.import_module("hazelcast.future").Future
errors = importlib.import_module("hazelcast.errors")

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def members(program):
    with cluster(program("hazelcast")[:-1]) as made:
        yield made


class Fault:
    """Lets one request of a client fail: the ``nth`` from now on of those that ``codec`` makes.

    Its answer is ``lost`` when it arrives, or the request was ``never`` sent. Or `deliver` sends it: ``late``, after it
    has failed, or while it ``stalls`` without an answer.
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

    def _fail_one(self, client, request, read):
        kind = int.from_bytes(request.buf[6:10], "little")
        if kind != self._type or self.hits:
            return self._post(client, request, read)
        self._left -= 1
        if self._left:
            return self._post(client, request, read)
        self.hits += 1
        future = Future()

        def fail():
            future.set_exception(errors.TargetDisconnectedError("the test cut it"))

        if self._how == "lost":
            self._post(client, request, read).when_done(fail)
        elif self._how == "cut":  # a request that waits on the servers, and whose connection breaks
            self._post(client, request, read)
            fail()
        else:
            self._kept = partial(self._post, client, request, read)
            if self._how == "stalls":
                self._kept = partial(self._pass_on, future, self._kept)
            else:
                fail()
        return Call(future, self._store._runtime, self._driver.where)

    def _pass_on(self, future, send):
        sent = send()
        sent.when_done(lambda: future.set_result(sent.result()))
        return sent

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
        assert await late.wait(SOON)
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


@both
@pytest.mark.parametrize("delivered", [0.05, 1.0])
def test_a_release_overtakes_a_try_that_is_on_its_way(harness, members, namespace, delivered):
    """Nothing more is sent for its ticket, whose owner's number may be another one's: the lock would be nobody's."""

    async def body(harness):
        client, other = harness.client(members.url), harness.client(members.url)
        keeps = held(await client.lock(f"{namespace}-other").acquire())  # keeps the session alive
        hold = held(await other.lock(namespace).acquire())
        fault = Fault(client, "fenced_lock_try_lock", "stalls")
        cancel = Cancellation()
        start = harness.now()
        waiter = harness.spawn(lambda: client.lock(namespace).acquire(timeout=20, cancel=cancel))
        await until_in(harness, lambda: fault.hits, SOON)
        cancel.cancel()
        await harness.sleep(delivered)
        fault.deliver()
        assert await waiter.result() is None
        assert harness.now() - start < SOON + 5
        await hold.release()
        await harness.sleep(0.3)
        await held(await other.lock(namespace).acquire(timeout=SOON)).release()
        await keeps.release()

    harness.run(body)


@both
def test_a_waiter_that_the_client_has_ended_waits_as_another_owner(harness, members, namespace):
    """Its renewals did not arrive for a lease. The release of the first owner takes nothing from the second."""

    async def body(harness):
        client, other = harness.client(members.url), harness.client(members.url)
        hold = held(await other.lock(namespace).acquire())
        waiter = harness.spawn(lambda: client.lock(namespace).acquire(timeout=20))
        store = client.store
        await until_in(harness, lambda: any(one.waiting for one in store._states.values()), SOON)
        (first,) = store._states.values()
        first.until = 0.0
        store._upkeep._wake.set()
        await until_in(harness, lambda: first.over, SOON)
        await until_in(harness, lambda: any(one.waiting for one in store._states.values() if not one.over), SOON)
        await hold.release()
        got = held(await waiter.result())
        (second,) = store._states.values()
        assert second is not first
        await harness.sleep(1.0)
        await got.renew()
        assert await other.lock(namespace).acquire(blocking=False) is None
        assert await got.release()

    harness.run(body)


@both
def test_a_wait_that_is_stuck_at_a_member_costs_a_third_of_the_lease_at_most(harness, members, namespace):
    """The renewal finds the lock free. The stuck request arrives after the release, and takes it for no ticket."""

    async def body(harness):
        client, other = harness.client(members.url), harness.client(members.url)
        keeps = held(await client.lock(f"{namespace}-other").acquire())  # keeps the session alive
        hold = held(await other.lock(namespace).acquire())
        fault = Fault(client, "fenced_lock_lock", "stalls")
        waiter = harness.spawn(lambda: client.lock(namespace, lease=3.0).acquire(timeout=20))
        await until_in(harness, lambda: fault.hits, SOON)
        await hold.release()
        start = harness.now()
        got = held(await waiter.result())
        assert harness.now() - start < 1.0 + SOON
        assert await other.lock(namespace).acquire(blocking=False) is None
        await got.release()
        assert await fault.deliver().wait(SOON)
        await held(await other.lock(namespace).acquire(timeout=SOON + 2)).release()
        await keeps.release()

    harness.run(body)


# --- cancellations -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["acquire", "wait", "hand-over", "release"])
def test_a_cancellation_at_any_moment_leaves_no_lock(members, namespace, what, monkeypatch):
    """Its own release frees the lock. It is only repeated later after a claim that had no answer for half a second, and
    after a release that was cut short."""
    undone = list[str]()
    release_again = upkeep.Upkeep.release_again

    def noted(self, state, *pauses):
        undone.append(state.id)
        release_again(self, state, *pauses)

    monkeypatch.setattr(upkeep.Upkeep, "release_again", noted)

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
                left = await others.inspect(namespace)
                assert left is None or undone, f"after {k} steps somebody has it: {left}"
                await held(await others.lock(namespace).acquire(timeout=SOON)).release()
            assert not locks.store._states
            assert what == "release" or len(undone) <= 3, "that is rare"

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
