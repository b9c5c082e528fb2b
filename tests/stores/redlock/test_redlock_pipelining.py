"""Redlock asked by the caller's own thread: late answers, interrupts, many threads, connections that break."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack

import pytest

from leasehold import Client, LeaseholdError
from leasehold.stores.redis import keys
from leasehold.stores.redis.redlock import late_replies, quorum_call
from leasehold.stores.redis.redlock.node import STUCK, Node
from leasehold_lab.proxy.proxy import FaultProxy, Side
from leasehold_lab.servers import RedlockNodes
from support.patience import until


@pytest.fixture
def nodes():
    """Three nodes to be broken."""
    with RedlockNodes(3) as group:
        yield group
        for node in group.nodes:
            if node.running:
                node.resume()


def through(nodes, *proxies):
    """Return the URL of all, the first ones behind the proxies."""
    ports = [proxy.port for proxy in proxies] + [node.port for node in nodes.nodes[len(proxies) :]]
    return "redlock://" + ",".join(f"127.0.0.1:{port}" for port in ports)


def voted(node, namespace, name="x"):
    return node.command("HGET", keys.node_keys(namespace, name)[0], "t")


def settled(locks, name="x", times=3):
    """Use the lock until each node has been met, and has a connection for questions."""
    for _ in range(times):
        locks.lock(name).acquire(timeout=5).release()
        time.sleep(0.1)


def test_a_refusal_that_comes_late_is_put_again_though_nobody_asks_any_more(nodes, namespace):
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


@pytest.mark.parametrize("tick", [late_replies.TICK, 60.0], ids=["read behind", "read by the next"])
def test_a_late_answer_does_not_make_a_node_seem_stuck(nodes, namespace, monkeypatch, tick):
    """It is read by the background, or, if that sleeps, by who asks next."""
    monkeypatch.setattr(late_replies, "TICK", tick)
    with FaultProxy(nodes.nodes[0].port) as proxy, Client.from_url(through(nodes, proxy), namespace=namespace) as locks:
        settled(locks)
        mode = proxy.delay(0.05, Side.REPLIES)
        locks.lock("x").acquire(timeout=5).release()
        mode.remove()
        time.sleep(0.6)  # longer than a node may owe an answer
        hold = locks.lock("x").acquire(timeout=5)
        until(lambda: voted(nodes.nodes[0], namespace) is not None, 5.0)
        hold.release()


def test_a_node_that_is_passed_over_wrongly_is_asked_after_all(nodes, namespace, monkeypatch):
    """One of three is taken for stuck, and another is: the claim and the release need the first."""
    rests = Node.rests
    with Client.from_url(nodes.url, namespace=namespace) as locks:
        settled(locks)
        monkeypatch.setattr(Node, "rests", lambda node, now: node.index == 0 or rests(node, now))
        nodes.nodes[1].pause()
        hold = locks.lock("x").acquire(timeout=2.0)
        assert voted(nodes.nodes[0], namespace)
        assert hold.release() is True


def test_a_leave_that_is_asked_after_all_is_not_owed_beside(nodes, namespace, monkeypatch):
    """What is owed would be sent by another thread, and then the node would say that nothing was there."""
    rests, asker = Node.rests, threading.current_thread()

    def seems_stuck(node, now):
        return rests(node, now) or (node.index == 0 and threading.current_thread() is asker)

    with Client.from_url(nodes.url, namespace=namespace) as locks:
        settled(locks)
        hold = locks.lock("x").acquire(timeout=2.0)
        until(lambda: all(voted(node, namespace) for node in nodes.nodes), 5.0)
        monkeypatch.setattr(Node, "rests", seems_stuck)
        nodes.nodes[1].pause()
        assert hold.release() is True
        monkeypatch.undo()


def test_threads_that_get_no_turn_do_not_take_the_nodes_for_stuck(namespace, monkeypatch):
    """Each reads its answers later than a node may owe them, and they ask one after the other."""
    results, mutex = [], threading.Lock()
    wait_for_replies = quorum_call.wait_for_replies

    def late(pipes, bell, seconds):
        time.sleep(STUCK + 0.1)
        wait_for_replies(pipes, bell, seconds)

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


def test_threads_that_ask_before_there_are_connections_are_answered_together(nodes, namespace, monkeypatch):
    """As when a service starts: each node, each far away, is asked a few times for all, and not for each thread."""
    asked, ask_all, threads = [], Node.ask_all, 60
    start, holds, failures = threading.Barrier(threads), [], []

    async def counted(node, commands, within):
        asked.append((node.index, len(commands)))
        return await ask_all(node, commands, within)

    async def no_connection(node, within):
        """So that nobody can ask by himself."""

    monkeypatch.setattr(Node, "ask_all", counted)
    with ExitStack() as stack:
        proxies = [stack.enter_context(FaultProxy(node.port)) for node in nodes.nodes]
        locks = stack.enter_context(Client.from_url(through(nodes, *proxies), namespace=namespace))
        for proxy in proxies:  # what comes while one is asked goes with the next question
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


def test_an_interrupt_leaves_nothing_behind(nodes, namespace, monkeypatch):
    wait_for_replies = quorum_call.wait_for_replies
    with Client.from_url(nodes.url, namespace=namespace) as locks:
        settled(locks)
        for after in (True, False):
            left = [1]

            def interrupted(pipes, bell, seconds, left=left, after=after):
                if after:
                    wait_for_replies(pipes, bell, seconds)
                if left and left.pop():
                    raise KeyboardInterrupt
                if not after:
                    wait_for_replies(pipes, bell, seconds)

            monkeypatch.setattr(quorum_call, "wait_for_replies", interrupted)
            with pytest.raises(KeyboardInterrupt):
                locks.lock("x").acquire(timeout=5)
            monkeypatch.setattr(quorum_call, "wait_for_replies", wait_for_replies)
            start = time.monotonic()
            hold = locks.lock("x").acquire(timeout=10)
            assert time.monotonic() - start < 5.0  # the lease is 30 s
            assert hold.release() is True
        until(lambda: not any(voted(node, namespace) for node in nodes.nodes), 5.0)


def test_many_threads_share_few_connections_while_a_node_is_stalled(nodes, namespace):
    """Eight at once, each with a name of its own and one that all want: nobody waits for the stalled node."""
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
        assert proxy.connections <= 8 + 1 + 1 + 4  # a thread each, what is not urgent, messages, and some to spare


def test_a_node_that_hung_up_is_asked_on_another_connection(nodes, namespace):
    with FaultProxy(nodes.nodes[0].port) as proxy, Client.from_url(through(nodes, proxy), namespace=namespace) as locks:
        settled(locks)
        proxy.cut()
        time.sleep(0.1)  # so that it can be known
        hold = locks.lock("x").acquire(timeout=5)
        until(lambda: voted(nodes.nodes[0], namespace) is not None, 2.0)
        assert hold.release() is True
        until(lambda: voted(nodes.nodes[0], namespace) is None, 5.0)
