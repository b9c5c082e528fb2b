"""Groups of servers: they find each other, lose and get back members, move slots, and end with their parent process."""

from __future__ import annotations

import time

import pytest

from leasehold_lab.servers import Node, RedisCluster, RedisReplicas, RedisSentinel, RedlockNodes
from leasehold_lab.servers.redis.resp import RedisError


def test_replicas_follow_and_can_be_promoted() -> None:
    with RedisReplicas(2) as group:
        old = group.primary
        old.command("SET", "key", "value")
        group.catch_up()
        new = group.replicas[0]
        assert new.command("GET", "key") == "value"
        group.promote(new)
        group.wait_healthy()
        assert group.primary is new
        assert str(new.port) in group.url
        assert old.role == "slave"


def test_sentinels_choose_another_primary() -> None:
    with RedisSentinel(replicas=2) as group:
        old = group.primary
        old.kill()
        new = group.wait_failover(old)
        assert new.role == "master"
        old.start()
        group.wait_healthy()
        assert old.role == "slave"


def test_a_primary_that_is_cut_off_goes_on_serving() -> None:
    with RedisSentinel(replicas=2) as group:
        old = group.primary
        old.cut_off()
        new = group.wait_failover(old)
        for node in (old, new):
            assert node.command("SET", "key", node.port) == "OK"
        old.rejoin()
        group.wait_healthy()
        assert old.command("GET", "key") == str(new.port)


def test_a_replica_takes_over_the_slots_of_its_primary() -> None:
    with RedisCluster() as cluster:
        old = cluster.primary_of("key")
        (next_waiter,) = cluster.replicas_of(old)
        old.kill()
        cluster.wait_failover(old)
        assert cluster.primary_of("key") is next_waiter
        old.start()
        cluster.wait_healthy()
        assert cluster.replicas_of(next_waiter) == [old]
        next_waiter.command("SET", "key", "value")
        cluster.catch_up(next_waiter)
        assert old.command("DBSIZE") == 1


def test_a_replica_takes_over_as_often_as_it_is_asked_to() -> None:
    with RedisCluster(node_timeout=1.0) as cluster:
        first = cluster.primary_of("key")
        (second,) = cluster.replicas_of(first)
        for node in (second, first, second):
            cluster.ask_to_take_over(node)
            cluster.wait_until(lambda node=node: node.role == "master", 10.0, "it has taken over")
            cluster.wait_healthy()
            assert cluster.primary_of("key") is node


def test_a_slot_moves_step_by_step() -> None:
    with RedisCluster(replicas=0) as cluster:
        source = cluster.primary_of("{a}1")
        target = next(node for node in cluster.primaries if node is not source)
        source.command("SET", "{a}1", "one")
        migration = cluster.migrate("{a}1", target)
        assert source.command("GET", "{a}1") == "one"
        migration.move("{a}1")
        assert refusal(source, "GET", "{a}1").startswith("ASK")
        assert refusal(source, "SET", "{a}2", "two").startswith("ASK")
        assert refusal(target, "GET", "{a}1").startswith("MOVED")
        migration.finish()
        assert target.command("GET", "{a}1") == "one"
        assert refusal(source, "GET", "{a}1").startswith("MOVED")
        assert cluster.primary_of("{a}1") is target
        cluster.wait_healthy()


def test_servers_for_redlock_know_nothing_of_each_other() -> None:
    with RedlockNodes() as group:
        assert len(group.nodes) == 5
        group.nodes[0].command("SET", "key", "value")
        assert group.nodes[1].command("GET", "key") is None
        assert group.url == "redlock://" + ",".join(f"127.0.0.1:{node.port}" for node in group.nodes)


@pytest.mark.parametrize("make", [RedisSentinel, RedisCluster])
def test_groups_speak_tls_and_have_passwords(make: type[RedisSentinel] | type[RedisCluster]) -> None:
    with make(tls=True, password="se cret#1", users=["app on >word ~* &* +@all"]) as group:
        assert group.url.startswith("rediss+")
        assert "se%20cret%231" in group.url
        assert group.certificates is not None
        for node in group.nodes:
            link = node.connect("app", "word")
            assert link.command("PING") == "PONG"
            link.close()


def test_a_group_that_cannot_start_leaves_nothing() -> None:
    group = RedisReplicas(config={"no-such-setting": "1"})
    with pytest.raises(RuntimeError, match="no-such-setting"):
        group.start()
    assert not any(server.running or server.folder.exists() for server in group.servers)


def test_what_never_comes_is_said_with_the_logs() -> None:
    with RedisReplicas() as group:
        began = time.monotonic()
        with pytest.raises(RuntimeError, match=r"(?s)not within 0.1 s: pigs fly.*Synchronization with replica"):
            group.wait_until(lambda: False, 0.1, "pigs fly")
        assert time.monotonic() - began < 5


def refusal(node: Node, *words: str) -> str:
    with pytest.raises(RedisError) as caught:
        node.command(*words)
    return str(caught.value)
