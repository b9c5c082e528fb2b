"""Redlock requests sent by the caller's thread: late answers, interrupts, many threads, broken connections."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
from redlock_votes import voted

from leasehold import Client, LeaseholdError, StoreUnavailable
from leasehold.stores.redis.connection.pipelining import PipelinedConnection
from leasehold.stores.redis.redlock import background, quorum_call
from leasehold.stores.redis.redlock.node import LONGEST, STUCK, Node
from leasehold_lab.proxy.proxy import FaultProxy, Side
from leasehold_lab.servers import RedlockNodes
from support.patience import until


@pytest.fixture
def nodes():
    """Three nodes that a test may break."""
    with RedlockNodes(3) as group:
        yield group
        for node in group.nodes:
            if node.running:
                node.resume()


def through(nodes, *proxies):
    """Return the URL of all nodes, the first ones behind the proxies."""
    ports = [proxy.port for proxy in proxies] + [node.port for node in nodes.nodes[len(proxies) :]]
    return "redlock://" + ",".join(f"127.0.0.1:{port}" for port in ports)


def settled(locks, name="x", times=3):
    """Use the lock until each node is known, and has a connection for requests."""
    for _ in range(times):
        locks.lock(name).acquire(timeout=5).release()
        time.sleep(0.1)


def test_a_late_error_reply_is_retried_without_a_further_request(nodes, namespace):
    slow = nodes.nodes[0]
    with FaultProxy(slow.port) as proxy, Client.from_url(through(nodes, proxy), namespace=namespace) as locks:
        settled(locks)
        hold = locks.lock("x", lease=60).acquire(timeout=5)
        until(lambda: voted(slow, namespace), 5.0)
        proxy.delay(0.1, Side.REPLIES)
        slow.command("SCRIPT", "FLUSH")
        start = time.monotonic()
        assert hold.release() is True
        took = time.monotonic() - start
        assert voted(slow, namespace) or took > 0.1  # by the others alone
        until(lambda: voted(slow, namespace) is None, 5.0)  # far below the lease


@pytest.mark.parametrize("tick", [background.TICK, 60.0], ids=["read behind", "read by the next"])
def test_a_late_answer_does_not_make_a_node_seem_stuck(nodes, namespace, monkeypatch, tick):
    """The background reads it, or, if that sleeps, the next caller does."""
    monkeypatch.setattr(background, "TICK", tick)
    with FaultProxy(nodes.nodes[0].port) as proxy, Client.from_url(through(nodes, proxy), namespace=namespace) as locks:
        settled(locks)
        mode = proxy.delay(0.05, Side.REPLIES)
        locks.lock("x").acquire(timeout=5).release()
        mode.remove()
        time.sleep(0.6)  # longer than an answer may be open
        hold = locks.lock("x").acquire(timeout=5)
        until(lambda: voted(nodes.nodes[0], namespace) is not None, 5.0)
        hold.release()


def test_a_node_skipped_wrongly_is_asked_after_all(nodes, namespace, monkeypatch):
    """Of three nodes one is taken for stuck wrongly, and another is stuck: the first one's vote is needed."""
    is_skipped = Node.is_skipped
    with Client.from_url(nodes.url, namespace=namespace) as locks:
        settled(locks)
        monkeypatch.setattr(Node, "is_skipped", lambda node, now: node.index == 0 or is_skipped(node, now))
        nodes.nodes[1].pause()
        hold = locks.lock("x").acquire(timeout=2.0)
        assert voted(nodes.nodes[0], namespace)
        assert hold.release() is True


def test_a_release_that_is_sent_after_all_is_not_pending_too(nodes, namespace, monkeypatch):
    """A pending release would be sent by another thread. Then the node would report that there was no vote."""
    is_skipped, asker = Node.is_skipped, threading.current_thread()

    def seems_stuck(node, now):
        return is_skipped(node, now) or (node.index == 0 and threading.current_thread() is asker)

    with Client.from_url(nodes.url, namespace=namespace) as locks:
        settled(locks)
        hold = locks.lock("x").acquire(timeout=2.0)
        until(lambda: all(voted(node, namespace) for node in nodes.nodes), 5.0)
        monkeypatch.setattr(Node, "is_skipped", seems_stuck)
        nodes.nodes[1].pause()
        assert hold.release() is True
        monkeypatch.undo()


def test_threads_without_cpu_time_do_not_take_nodes_for_stuck(namespace, monkeypatch):
    """Each thread reads its answers late, and the threads ask one after the other."""
    results, mutex = [], threading.Lock()
    wait_for_replies = quorum_call.wait_for_replies

    def late(connections, wake_up, seconds):
        time.sleep(STUCK + 0.1)
        wait_for_replies(connections, wake_up, seconds)

    with RedlockNodes(5) as group, Client.from_url(group.url, namespace=namespace) as locks:
        settled(locks)
        monkeypatch.setattr(quorum_call, "wait_for_replies", late)

        def work(number):
            time.sleep(0.04 * number)
            for _ in range(2):
                try:
                    result = locks.lock(f"own{number}").acquire(timeout=20).release()
                except LeaseholdError as error:
                    result = error
                with mutex:
                    results.append(result)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == [True] * 48


def test_requests_of_threads_without_connections_share_a_write(nodes, namespace, monkeypatch):
    """As when a service starts: each slow node gets a few writes for all threads, and not one for each."""
    asked, ask_all, threads = [], Node.ask_all, 60
    start, holds, failures = threading.Barrier(threads), [], []

    async def counted(node, commands, within):
        asked.append((node.index, len(commands)))
        return await ask_all(node, commands, within)

    async def no_connection(node, within):
        """Open none, so that no caller can send itself."""

    monkeypatch.setattr(Node, "ask_all", counted)
    with ExitStack() as stack:
        proxies = [stack.enter_context(FaultProxy(node.port)) for node in nodes.nodes]
        locks = stack.enter_context(Client.from_url(through(nodes, *proxies), namespace=namespace))
        for proxy in proxies:  # requests that arrive meanwhile share the next write
            proxy.delay(0.05, Side.REPLIES)
        monkeypatch.setattr(Node, "connect", no_connection)

        def work(number):
            start.wait()
            try:
                holds.append(locks.lock(f"own{number}").acquire(timeout=20))
            except LeaseholdError as error:
                failures.append(error)

        crowd = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for thread in crowd:
            thread.start()
        for thread in crowd:
            thread.join()
        assert not failures
        assert len(holds) == threads
        assert all(sum(index == node for index, _ in asked) <= threads / 3 for node in range(3)), asked


def test_an_interrupt_leaves_no_votes(nodes, namespace, monkeypatch):
    wait_for_replies = quorum_call.wait_for_replies
    with Client.from_url(nodes.url, namespace=namespace) as locks:
        settled(locks)
        for after in (True, False):
            left = [1]

            def interrupted(connections, wake_up, seconds, left=left, after=after):
                if after:
                    wait_for_replies(connections, wake_up, seconds)
                if left and left.pop():
                    raise KeyboardInterrupt
                if not after:
                    wait_for_replies(connections, wake_up, seconds)

            monkeypatch.setattr(quorum_call, "wait_for_replies", interrupted)
            with pytest.raises(KeyboardInterrupt):
                locks.lock("x").acquire(timeout=5)
            monkeypatch.setattr(quorum_call, "wait_for_replies", wait_for_replies)
            start = time.monotonic()
            hold = locks.lock("x").acquire(timeout=10)
            assert time.monotonic() - start < 5.0  # the lease is 30 s
            assert hold.release() is True
        until(lambda: not any(voted(node, namespace) for node in nodes.nodes), 5.0)


def test_a_node_does_not_seem_stuck_after_an_interrupt_of_a_request_to_it(nodes, namespace, monkeypatch):
    """No answer will come for a request that was not sent."""

    def interrupted(*_):
        raise KeyboardInterrupt

    with Client.from_url(nodes.url, namespace=namespace, response_timeout=60.0) as locks:
        settled(locks)
        with monkeypatch.context() as patch:
            patch.setattr(PipelinedConnection, "post", interrupted)
            with pytest.raises(KeyboardInterrupt):
                locks.lock("x").acquire()
        store = locks.store
        until(lambda: not any(node.is_skipped(store._runtime.now() + 2 * STUCK) for node in store._quorum.nodes), 10.0)


def test_many_threads_share_few_connections_while_a_node_is_stalled(nodes, namespace):
    """Eight threads use a name each and a common one: none waits for the stalled node."""
    inside, most, failures = [0], [0], []
    with FaultProxy(nodes.nodes[0].port) as proxy, Client.from_url(through(nodes, proxy), namespace=namespace) as locks:
        settled(locks)

        def work(number):
            try:
                for turn in range(12):
                    locks.lock(f"own{number}").acquire(timeout=20).release()
                    with locks.lock("common", timeout=20):
                        inside[0] += 1
                        most[0] = max(most[0], inside[0])
                        inside[0] -= 1
                    if number == 0 and turn == 4:
                        nodes.nodes[0].pause()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert most[0] == 1
        assert proxy.connections <= 8 + 1 + 1 + 4  # one a thread, the background, messages, and some to spare


def test_a_node_that_closed_a_connection_is_asked_on_another(nodes, namespace):
    with FaultProxy(nodes.nodes[0].port) as proxy, Client.from_url(through(nodes, proxy), namespace=namespace) as locks:
        settled(locks)
        proxy.cut()
        time.sleep(0.1)  # until the client can notice it
        hold = locks.lock("x").acquire(timeout=5)
        until(lambda: voted(nodes.nodes[0], namespace) is not None, 2.0)
        assert hold.release() is True
        until(lambda: voted(nodes.nodes[0], namespace) is None, 5.0)


def test_a_request_that_fails_long_after_its_start_still_counts():
    """With a long `response_timeout` it may do so when it no longer counts as open."""
    clock = SimpleNamespace(at=100.0)
    runtime = SimpleNamespace(now=lambda: clock.at, jitter=lambda: 0.5)
    member = SimpleNamespace(settings=None, transport=lambda *_: None)
    node = Node(runtime, 0, member, "", b"", lambda *_: None, lambda: None, lambda: None)

    def fail(seconds, answers_at=None):
        with node.open_request():
            for second in range(int(seconds) + 1):
                clock.at += 1.0
                node.is_skipped(clock.at)
                if second == answers_at:
                    node.end_request(object(), None)  # to another one
            raise StoreUnavailable("it answered too slowly", unknown=True)

    node.end_request(object(), None)
    clock.at += 1.0
    fail(LONGEST + 10.0)
    assert node.is_skipped(clock.at)
    clock.at += 60.0
    assert not node.is_skipped(clock.at)
    fail(LONGEST + 10.0, answers_at=5)
    assert not node.is_skipped(clock.at)  # it has answered since
