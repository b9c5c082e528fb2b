"""ZooKeeper and its faults: lost replies and lost connections. Both flavors."""

from __future__ import annotations

import struct
import time

import pytest
from zookeeper_clients import NOISE, SESSION, client_of, path

from leasehold import AsyncHold, LeaseLost
from leasehold._model import Granted, Kind, LockMode
from leasehold.errors import StoreUnavailable
from leasehold.events import Event, InDoubt, Renewed
from leasehold.stores.zookeeper.nodes import Mark, stem
from leasehold.stores.zookeeper.store import VALID
from leasehold_lab.conformance.case_context import held, raised, ticket
from leasehold_lab.proxy.proxy import FaultProxy, Side
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import ZooKeeperServer
from leasehold_lab.servers.zookeeper import TICK
from support.patience import until_in
from support.programs.zookeeper_client import SOON, children, create_in_session, driver, transport

# --- lost replies --------------------------------------------------------------------------------------------------


def test_a_create_whose_reply_is_lost_is_found_again(
    harness: Harness, proxy: FaultProxy, namespace: str, zookeeper_server: ZooKeeperServer
) -> None:
    """The node was made but the reply lost: the repeated claim finds it in the same session, and makes no other."""

    async def body(harness: Harness) -> None:
        client = client_of(harness, proxy, namespace)
        await held(await client.lock("a").acquire()).release()
        lost = proxy.drop_reply(where=b"-lock-")
        hold = held(await client.lock("a").acquire(timeout=SOON))
        assert lost.hits == 1
        (child,) = children(zookeeper_server, path(namespace))
        assert child.endswith("0000000001"), "the first create is the one that counts"
        hold.raise_if_lost()
        assert await hold.release() is True
        assert children(zookeeper_server, path(namespace)) == []

    harness.run(body)


def test_a_create_whose_reply_is_lost_is_removed_when_the_acquire_gives_up(
    harness: Harness, proxy: FaultProxy, namespace: str, zookeeper_server: ZooKeeperServer
) -> None:
    async def body(harness: Harness) -> None:
        client, holder = client_of(harness, proxy, namespace), client_of(harness, proxy, namespace)
        hold = held(await holder.lock("a").acquire())
        proxy.drop_reply(where=b"-lock-")
        assert await client.lock("a").acquire(timeout=0.5) is None
        await until_in(harness, lambda: len(children(zookeeper_server, path(namespace))) == 1, SOON)
        hold.raise_if_lost()
        await hold.release()

    harness.run(body)


def test_a_create_that_arrives_after_the_release_is_removed(
    harness: Harness, proxy: FaultProxy, namespace: str, zookeeper_server: ZooKeeperServer
) -> None:
    """The network kept it; the session goes on over another connection, so the server would keep the node for ever."""

    async def body(harness: Harness) -> None:
        client = client_of(harness, proxy, namespace, timeout=60.0, response_timeout=1.2)
        await held(await client.lock("a").acquire()).release()
        late = proxy.hold(where=b"-lock-", nth=1)
        await raised(StoreUnavailable, client.lock("a").acquire(timeout=0.2))
        session = transport(client).session
        late.remove()  # this server refuses it, as the session has moved on; so it arrives by another way
        ((_, state, _),) = client.store._expiry._pending  # type: ignore[attr-defined]
        name = f"{path(namespace)}/{stem(state.ticket.id, Mark.LOCK)}"
        made = create_in_session(zookeeper_server, driver(client).client_id, name)
        assert made.startswith(name), "it was there, though it may be gone by now"
        assert transport(client).session == session
        await until_in(harness, lambda: children(zookeeper_server, path(namespace)) == [], 8)

    harness.run(body)


def test_a_release_whose_reply_is_lost_is_not_a_loss(
    harness: Harness, proxy: FaultProxy, namespace: str, zookeeper_server: ZooKeeperServer
) -> None:
    async def body(harness: Harness) -> None:
        client = client_of(harness, proxy, namespace)
        hold = held(await client.lock("a").acquire())
        (child,) = children(zookeeper_server, path(namespace))
        lost = proxy.drop_reply(where=child.encode())
        await hold.release()
        assert lost.hits == 1
        assert not hold.lost
        assert children(zookeeper_server, path(namespace)) == []

    harness.run(body)


def test_a_release_during_an_outage_is_retried_until_it_succeeds(
    harness: Harness, proxy: FaultProxy, namespace: str, zookeeper_server: ZooKeeperServer
) -> None:
    """The session lives on, so the node would stay for ever; its removal outlasts the lease of the ticket."""

    async def body(harness: Harness) -> None:
        client = client_of(harness, proxy, namespace, timeout=20.0)
        hold = held(await client.lock("a", lease=0.5).acquire())
        proxy.stop()
        assert await hold.release() is False
        await harness.sleep(1.2)
        proxy.start()
        took = await until_in(harness, lambda: children(zookeeper_server, path(namespace)) == [], SOON)
        assert took < SOON
        assert transport(client).session is not None, "in the same session"

    harness.run(body)


# --- lost connections ----------------------------------------------------------------------------------------------


def test_a_lost_connection_puts_in_doubt_at_once_and_a_new_one_ends_the_doubt(
    harness: Harness, proxy: FaultProxy, namespace: str
) -> None:
    async def body(harness: Harness) -> None:
        events: list[Event] = []
        client = client_of(harness, proxy, namespace, timeout=10.0, observer=events.append)
        hold = held(await client.lock("a").acquire())
        session = transport(client).session
        proxy.cut()
        assert await until_in(harness, lambda: any(isinstance(event, InDoubt) for event in events), SOON) < NOISE
        await until_in(harness, lambda: any(isinstance(event, Renewed) for event in events), SOON)
        hold.raise_if_lost()
        assert transport(client).session == session
        assert await hold.release() is True

    harness.run(body)


@pytest.mark.parametrize("how", ["blackhole", "stop"])
def test_an_outage_beyond_the_lease_ends_the_hold_before_the_server_does(
    harness: Harness, proxy: FaultProxy, namespace: str, zookeeper_server: ZooKeeperServer, how: str
) -> None:
    """A local timer reports the loss at the session's bound; another client gets the lock only after that."""

    async def body(harness: Harness) -> None:
        to_error: list[float] = []
        client = client_of(harness, proxy, namespace)
        direct = harness.client(f"{zookeeper_server.url}/faults?session_timeout=10", namespace=namespace)
        hold = held(await client.lock("a").acquire())
        hold.on_lost(lambda _: to_error.append(time.monotonic()))

        async def wait() -> tuple[AsyncHold, float]:
            return held(await direct.lock("a").acquire(timeout=30)), time.monotonic()

        waiter = harness.spawn(wait)
        start = time.monotonic()
        if how == "stop":
            proxy.stop()
        else:
            proxy.blackhole()
        await until_in(harness, lambda: hold.lost, SESSION * VALID + NOISE)
        after, taken = await waiter.result()
        assert to_error[0] < taken, "notified before another client had it"
        assert taken - start < SESSION + 2 * TICK + NOISE
        assert after.token > hold.token
        await raised(LeaseLost, hold.release())
        after.raise_if_lost()
        if how == "stop":
            proxy.start()
        proxy.heal()
        assert await after.release() is True
        again = held(await client.lock("a").acquire(timeout=SOON))
        assert again.token > after.token
        await again.release()

    harness.run(body)


def test_a_waiter_keeps_its_queue_entry_over_a_lost_connection(
    harness: Harness, proxy: FaultProxy, namespace: str, zookeeper_server: ZooKeeperServer
) -> None:
    """Its watch is lost with the connection; the release that follows is not missed."""

    async def body(harness: Harness) -> None:
        client = client_of(harness, proxy, namespace, timeout=10.0)
        direct = harness.client(f"{zookeeper_server.url}/faults", namespace=namespace)
        hold = held(await direct.lock("a").acquire())
        waiter = harness.spawn(lambda: client.lock("a").acquire(timeout=30))
        await until_in(harness, lambda: len(children(zookeeper_server, path(namespace))) == 2, SOON)
        before = children(zookeeper_server, path(namespace))
        for _ in range(3):
            proxy.cut()
            await harness.sleep(0.2)
        assert children(zookeeper_server, path(namespace)) == before
        start = time.monotonic()
        await hold.release()
        after = held(await waiter.result())
        assert time.monotonic() - start < SOON
        await after.release()

    harness.run(body)


def test_a_release_while_the_waiter_is_cut_off_is_not_missed(
    harness: Harness, proxy: FaultProxy, namespace: str, zookeeper_server: ZooKeeperServer
) -> None:
    async def body(harness: Harness) -> None:
        client = client_of(harness, proxy, namespace, timeout=10.0)
        direct = harness.client(f"{zookeeper_server.url}/faults", namespace=namespace)
        hold = held(await direct.lock("a").acquire())
        waiter = harness.spawn(lambda: client.lock("a").acquire(timeout=30))
        await until_in(harness, lambda: len(children(zookeeper_server, path(namespace))) == 2, SOON)
        proxy.stop()
        await hold.release()
        await harness.sleep(0.3)
        proxy.start()
        await held(await waiter.result()).release()

    harness.run(body)


def test_a_grant_whose_reply_is_too_late_is_discarded(
    harness: Harness, proxy: FaultProxy, namespace: str, zookeeper_server: ZooKeeperServer
) -> None:
    """The time counts from before the request was sent: a grant that was on its way for longer is thrown away."""

    async def body(harness: Harness) -> None:
        client = client_of(harness, proxy, namespace, timeout=10.0)
        await held(await client.lock("a").acquire()).release()
        slow = proxy.delay(0.35, Side.REPLIES)
        error = await raised(LeaseLost, client.lock("a", lease=0.3).acquire(timeout=0.2))
        assert "too late" in str(error)
        slow.remove()
        await until_in(harness, lambda: children(zookeeper_server, path(namespace)) == [], SOON)

    harness.run(body)


@pytest.mark.parametrize("which", range(3))
def test_a_permit_whose_node_is_removed_alone_is_a_loss(
    harness: Harness, proxy: FaultProxy, namespace: str, zookeeper_server: ZooKeeperServer, which: int
) -> None:
    """Its semaphore counts it as free, so another may have it. The other nodes of the hold are removed, too."""

    async def body(harness: Harness) -> None:
        client, leases = client_of(harness, proxy, namespace), f"{path(namespace)}/leases"
        hold = held(await client.semaphore("a", 3).acquire(3))
        with zookeeper_server.connect() as operator:
            operator.delete(f"{leases}/{children(zookeeper_server, leases)[which]}")
        await raised(LeaseLost, hold.renew())
        await until_in(harness, lambda: children(zookeeper_server, leases) == [], SOON)

    harness.run(body)


@pytest.mark.parametrize("which", range(3))
def test_a_claim_is_repeated_with_all_its_permits(
    harness: Harness, proxy: FaultProxy, namespace: str, zookeeper_server: ZooKeeperServer, which: int
) -> None:
    """One of the nodes was removed before."""

    async def body(harness: Harness) -> None:
        client, leases = client_of(harness, proxy, namespace), f"{path(namespace)}/leases"
        wanted = ticket(client, LockMode(Kind.SEMAPHORE, permits=3, limit=3))
        tokens = list[int]()
        for _ in range(2):
            granted = await client.store.try_acquire("a", wanted, join=True, within=SOON)
            assert isinstance(granted, Granted)
            tokens.append(granted.token)
            permits = children(zookeeper_server, leases)
            assert len(permits) == 3
            with zookeeper_server.connect() as operator:
                operator.delete(f"{leases}/{permits[which]}")
        assert tokens[0] < tokens[1]

    harness.run(body)


SEEN = struct.Struct(">iqiq")
"""What a session begins with after its length: version, the last transaction that the client saw, timeout, session."""


def first_words(proxy: FaultProxy) -> list[tuple[int, int]]:
    """Return, for each attempt to connect, the last transaction that the client says it saw, and its session."""
    sent, found = proxy.seen(), list[tuple[int, int]]()
    for at in range(len(sent) - SEEN.size - 4):
        length = int.from_bytes(sent[at : at + 4], "big")
        version, seen, timeout, session = SEEN.unpack_from(sent, at + 4)
        if length in (44, 45) and version == 0 and timeout == round(SESSION * 1000):
            found.append((seen, session))
    return found


def test_a_client_reports_its_last_transaction_until_its_session_is_surely_over(
    harness: Harness, proxy: FaultProxy, namespace: str, zookeeper_server: ZooKeeperServer
) -> None:
    """Till then no member that lags behind is believed; from then on none whose data were wiped refuses us."""

    async def body(harness: Harness) -> None:
        client = client_of(harness, proxy, namespace)
        await held(await client.lock("a").acquire()).release()
        assert [seen for seen, _ in first_words(proxy)] == [0]
        proxy.forget()
        proxy.cut()
        await until_in(harness, lambda: bool(first_words(proxy)), SOON)
        assert all(seen > 0 and session for seen, session in first_words(proxy))
        await held(await client.lock("a").acquire(timeout=SOON)).release()
        proxy.forget()
        hole = proxy.blackhole()
        proxy.cut()
        await harness.sleep(SESSION + NOISE)
        assert first_words(proxy)[0][0] > 0
        await until_in(harness, lambda: bool(words := first_words(proxy)) and words[-1][0] == 0, SOON)
        hole.remove()
        proxy.heal()
        await held(await client.lock("a").acquire(timeout=SOON)).release()

    harness.run(body)
