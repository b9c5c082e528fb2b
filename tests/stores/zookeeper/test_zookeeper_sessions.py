"""Sessions of ZooKeeper that end, and nodes that an operator removes. Both flavors."""

from __future__ import annotations

import socket
import threading
import time

import pytest
from zookeeper_clients import NOISE, SESSION, client_of, path

from leasehold import LeaseLost, StoreUnavailable
from leasehold.events import Event, Lost
from leasehold.stores.zookeeper.connection.kazoo_client import shut_down
from leasehold.stores.zookeeper.nodes import Mark, stem
from leasehold_lab.conformance.case_context import held, raised
from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import ZooKeeperServer
from leasehold_lab.servers.zookeeper import TICK
from support.patience import until_in
from support.programs.zookeeper_client import SOON, children, driver, expire, transport

# --- sessions that end ---------------------------------------------------------------------------------------------


def test_a_session_that_the_server_ends_loses_all_holds_at_once(
    harness: Harness, namespace: str, zookeeper_server: ZooKeeperServer
) -> None:
    """Not at the next renewal, seconds later; new claims go on in a new session."""

    async def body(harness: Harness) -> None:
        events: list[Event] = []
        client = harness.client(f"{zookeeper_server.url}/faults", namespace=namespace, observer=events.append)
        holds = [held(await client.lock(name, renew=name == "a", lease=10).acquire()) for name in "ab"]
        old = transport(client).session
        expire(zookeeper_server, client)
        assert await until_in(harness, lambda: all(hold.lost for hold in holds), SOON) < NOISE + 2
        assert sum(isinstance(event, Lost) for event in events) == 2
        again = held(await client.lock("a").acquire(timeout=SOON))
        assert again.token > holds[0].token
        assert transport(client).session != old
        for hold in holds:
            await raised(LeaseLost, hold.release())
        again.raise_if_lost()
        assert await again.release() is True

    harness.run(body)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_client_goes_on_when_an_error_has_ended_the_thread_of_the_driver(
    harness: Harness, namespace: str, zookeeper_server: ZooKeeperServer
) -> None:
    """kazoo raises in its thread at a reply that it cannot read, and does not begin again."""

    async def body(harness: Harness) -> None:
        client = harness.client(f"{zookeeper_server.url}/faults?session_timeout=2", namespace=namespace)
        hold = held(await client.lock("a", lease=10).acquire())
        connection, ended = driver(client)._connection, threading.Event()

        def fail(*_: object) -> None:
            ended.set()
            raise RuntimeError("xids do not match, expected 1 received 2")

        connection._read_header = fail
        await until_in(harness, ended.is_set, SOON)
        await until_in(harness, lambda: hold.lost, SOON)
        again = held(await client.lock("a").acquire(timeout=SOON))
        assert again.token > hold.token
        await again.release()

    harness.run(body)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_who_waits_for_a_connection_is_told_that_the_thread_of_the_driver_has_ended(
    harness: Harness, namespace: str, zookeeper_server: ZooKeeperServer
) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(f"{zookeeper_server.url}/faults", namespace=namespace, response_timeout=30.0)
        await client.versioned("x").get()
        kazoo, go_on = driver(client), threading.Event()

        def fail(*_: object) -> None:
            assert go_on.wait(SOON)
            raise RuntimeError("unpack requires a buffer of 4 bytes")

        kazoo._connection._connect = fail
        shut_down(kazoo)
        await until_in(harness, lambda: not transport(client).up, SOON)
        waiter = harness.spawn(client.versioned("x").get)
        await until_in(harness, lambda: transport(client)._waiting, SOON)
        began = harness.now()
        go_on.set()
        await waiter.result()
        assert harness.now() - began < 15.0

    harness.run(body)


def test_a_driver_that_finds_no_address_yet_is_kept(
    harness: Harness, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread is alive, and looks again."""

    def unknown(*_: object) -> None:
        raise socket.gaierror("no such name")

    async def body(harness: Harness) -> None:
        client = harness.client("zookeeper://nowhere:2181/faults", namespace=namespace)
        monkeypatch.setattr("kazoo.protocol.connection.socket.getaddrinfo", unknown)
        found = list[object]()
        for _ in range(2):
            await raised(StoreUnavailable, client.lock("a").acquire(timeout=0.3))
            found.append(driver(client))
        assert found[0] is found[1] is not None
        monkeypatch.undo()

    harness.run(body)


def test_a_waiter_whose_session_ends_joins_the_queue_again(
    harness: Harness, namespace: str, zookeeper_server: ZooKeeperServer
) -> None:
    async def body(harness: Harness) -> None:
        url = f"{zookeeper_server.url}/faults"
        client, direct = (harness.client(url, namespace=namespace) for _ in range(2))
        hold = held(await direct.lock("a").acquire())
        waiter = harness.spawn(lambda: client.lock("a").acquire(timeout=30))
        await until_in(harness, lambda: len(children(zookeeper_server, path(namespace))) == 2, SOON)
        expire(zookeeper_server, client)
        await until_in(harness, lambda: len(children(zookeeper_server, path(namespace))) == 2, SOON)
        await hold.release()
        after = held(await waiter.result())
        after.raise_if_lost()
        await after.release()

    harness.run(body)


def test_a_node_of_another_session_is_not_taken_for_ours(
    harness: Harness, proxy: FaultProxy, namespace: str, zookeeper_server: ZooKeeperServer
) -> None:
    """A node with our UUID whose session is ending blocks us, as any other node, until the server removes it."""

    async def body(harness: Harness) -> None:
        client = client_of(harness, proxy, namespace, timeout=20.0)
        with zookeeper_server.connect() as dying:
            cut = proxy.cut_at(where=b"-lock-")  # the claim's create never arrives, and the client is uncertain
            await client.versioned("x").get()  # connects
            waiter = harness.spawn(lambda: client.lock("a").acquire(timeout=30))
            await until_in(harness, lambda: cut.hits == 1, SOON)
            state = next(iter(client.store._states.values()))  # type: ignore[attr-defined]
            name = f"{path(namespace)}/{stem(state.ticket.id, Mark.LOCK)}"
            dying.create(name, b"", ephemeral=True, sequence=True, makepath=True)
            await until_in(harness, lambda: len(children(zookeeper_server, path(namespace))) == 2, SOON)
            await harness.sleep(0.2)
            assert not waiter.done()
        hold = held(await waiter.result())
        hold.raise_if_lost()
        await hold.release()

    harness.run(body)


# --- operators -----------------------------------------------------------------------------------------------------


def test_a_node_that_an_operator_removes_is_a_loss_at_the_next_renewal(
    harness: Harness, namespace: str, zookeeper_server: ZooKeeperServer
) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(f"{zookeeper_server.url}/faults", namespace=namespace)
        hold = held(await client.lock("a", lease=1.5).acquire())
        with zookeeper_server.connect() as operator:
            operator.delete(path(namespace), recursive=True)
        await until_in(harness, lambda: hold.lost, 1.5 / 3 + NOISE)
        again = held(await client.lock("a").acquire(timeout=SOON))
        assert again.token > hold.token, "the numbers in the names began anew, the tokens did not"
        assert children(zookeeper_server, path(namespace))[0].endswith("0000000000")
        await again.release()

    harness.run(body)


def test_a_parent_node_that_is_removed_repeatedly_is_created_again(
    harness: Harness, namespace: str, zookeeper_server: ZooKeeperServer
) -> None:
    """As the server does with containers that are empty. The numbers of its children begin anew, tokens do not."""

    async def body(harness: Harness) -> None:
        client = harness.client(f"{zookeeper_server.url}/faults", namespace=namespace)
        with zookeeper_server.connect() as operator:
            tokens = list[int]()
            for name in ("a", "b", "a"):
                hold = held(await client.lock(name).acquire())
                tokens.append(hold.token)
                await hold.release()
                operator.delete(f"/faults/{namespace}", recursive=True)
            assert tokens == sorted(set(tokens))
            async with client.semaphore("s", 2).permits(2), client.rw_lock("r").writer():
                pass

    harness.run(body)


def test_closing_the_driver_wakes_every_caller(
    harness: Harness, proxy: FaultProxy, namespace: str, zookeeper_server: ZooKeeperServer
) -> None:
    """Closing while the network swallows everything ends all the same; the session ends by itself."""

    async def body(harness: Harness) -> None:
        client = client_of(harness, proxy, namespace)
        await client.lock("a").acquire()
        assert driver(client) is not None
        proxy.blackhole()
        start = time.monotonic()
        await client.close()
        assert time.monotonic() - start < 15
        proxy.heal()
        await until_in(harness, lambda: children(zookeeper_server, path(namespace)) == [], SESSION + 2 * TICK + NOISE)

    harness.run(body)
