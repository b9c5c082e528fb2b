"""Each error reply of a server, provoked on a real one."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from leasehold._model import LeaseTerms, LockMode, Owner, Ticket, ticket_id
from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold._url import parse
from leasehold.errors import StoreUnavailable
from leasehold.layouts.redis.redlock import SCRIPTS
from leasehold.stores.redis import keys
from leasehold.stores.redis.connection import settings
from leasehold.stores.redis.connection.base import (
    ReplyError,
    pack,
)
from leasehold.stores.redis.connection.blocking import BlockingTransport
from leasehold.stores.redis.scripts import REDLOCK_CLAIM, Script, commands
from leasehold_lab.servers import RedisCluster, RedisReplicas, RedisServer
from leasehold_lab.servers.base import free_port
from leasehold_lab.servers.redis.resp import RedisError

RUNTIME = BlockingRuntime()

Provoked = Callable[[pytest.FixtureRequest], object]


def claim(name: str = "a") -> tuple[Script, Any, Any]:
    ticket = Ticket(ticket_id(RUNTIME.random_bytes(16)), LeaseTerms(LockMode(), Owner("host", 1, "x"), 30.0, 0.0, ""))
    script, those, words = commands.try_acquire("default", name, ticket, join=False, channel=b"")
    return script, those, words


@contextlib.contextmanager
def transport_to(server: RedisServer, user: str = "", mode: str = "standalone") -> Iterator[BlockingTransport]:
    """Open a transport that takes servers of any role."""
    reached = settings.from_url(parse(f"redis://{user}127.0.0.1:{server.port}"))
    transport = BlockingTransport(
        RUNTIME, replace(reached, mode=mode, any_role=True), b"", lambda _: None, lambda: None
    )
    try:
        yield transport
    finally:
        finish(transport.close())


def answer(server: RedisServer, *, name: str = "a", user: str = "", mode: str = "standalone") -> object:
    """Run the acquire script on a name; return the reply."""
    with transport_to(server, user, mode) as transport:
        script, those, words = claim(name)
        return finish(transport.call(script.by_text(those, words), within=5.0))


# --- how each is provoked ------------------------------------------------------------------------------------------


def readonly(request: pytest.FixtureRequest) -> object:
    pair: RedisReplicas = request.getfixturevalue("pair")
    return answer(pair.replicas[0])


def master_down(request: pytest.FixtureRequest) -> object:
    pair: RedisReplicas = request.getfixturevalue("pair")
    (replica,) = pair.replicas
    pair.primary.cut_off()
    replica.command("CONFIG", "SET", "replica-serve-stale-data", "no")
    try:
        pair.wait_until(lambda: replica.info("replication")["master_link_status"] == "down", 5.0, "the link is down")
        return answer(replica)
    finally:
        replica.command("CONFIG", "SET", "replica-serve-stale-data", "yes")
        pair.nodes[0].rejoin()


@contextlib.contextmanager
def config(server: RedisServer, **values: str) -> Iterator[None]:
    before = {}
    for name, value in values.items():
        option = name.replace("_", "-")
        (_, before[option]) = server.command("CONFIG", "GET", option)  # type: ignore[misc]
        server.command("CONFIG", "SET", option, value)
    try:
        yield
    finally:
        for option, value in before.items():
            server.command("CONFIG", "SET", option, value)


def no_replicas(request: pytest.FixtureRequest) -> object:
    server: RedisServer = request.getfixturevalue("server")
    with config(server, min_replicas_to_write="1"):
        return answer(server)


def out_of_memory(request: pytest.FixtureRequest) -> object:
    server: RedisServer = request.getfixturevalue("server")
    with config(server, maxmemory="100kb"):
        return answer(server)


def cannot_save(request: pytest.FixtureRequest) -> object:
    server = RedisServer(config={"save": "3600 1"})
    data = server.folder / "data"
    server._config["dir"] = str(data)
    data.mkdir()
    with server:
        data.rmdir()
        with contextlib.suppress(RedisError):
            server.command("BGSAVE")
        until = time.monotonic() + 5
        while "rdb_last_bgsave_status:err" not in str(server.command("INFO", "persistence")):
            assert time.monotonic() < until
            time.sleep(0.01)
        return answer(server)


def loading(request: pytest.FixtureRequest) -> object:
    with RedisServer(config={"key-load-delay": "2000", "loading-process-events-interval-bytes": "1024"}) as server:
        server.command("DEBUG", "POPULATE", "1000")
        with transport_to(server) as transport:
            finish(transport.call(pack(b"TIME"), within=5.0))
            link = server.connect()
            thread = threading.Thread(target=lambda: link.command("DEBUG", "RELOAD"))
            thread.start()
            script, those, words = claim()
            reply = None
            while thread.is_alive() and not isinstance(reply, ReplyError):
                reply = finish(transport.call(script.by_text(those, words), within=30.0))
            thread.join()
            link.close()
            return reply


def busy(request: pytest.FixtureRequest) -> object:
    server: RedisServer = request.getfixturevalue("server")
    link = server.connect()

    def spin() -> None:
        with contextlib.suppress(RedisError):  # it is killed
            link.command("EVAL", "while true do end", "0")

    with config(server, lua_time_limit="50"):
        thread = threading.Thread(target=spin)
        with transport_to(server) as transport:
            finish(transport.call(pack(b"TIME"), within=5.0))
            thread.start()
            time.sleep(0.2)
            script, those, words = claim()
            reply = finish(transport.call(script.by_text(those, words), within=5.0))
            server.command("SCRIPT", "KILL")
            thread.join()
    link.close()
    return reply


def cluster_down(request: pytest.FixtureRequest) -> object:
    with RedisServer(config={"cluster-enabled": "yes", "cluster-port": str(free_port())}) as node:
        return answer(node, mode="cluster")


def moved(request: pytest.FixtureRequest) -> object:
    cluster: RedisCluster = request.getfixturevalue("cluster")
    owner = cluster.primary_of(keys.mutex_keys("default", "m")[0])
    return answer(next(node for node in cluster.primaries if node is not owner), name="m", mode="cluster")


def on_its_way(request: pytest.FixtureRequest, *, held: bool) -> object:
    cluster: RedisCluster = request.getfixturevalue("cluster")
    name = "held" if held else "free"
    lock = keys.mutex_keys("default", name)[0]
    owner = cluster.primary_of(lock)
    if held:  # one of its four keys exists
        assert not isinstance(answer(owner, name=name, mode="cluster"), ReplyError)
    migration = cluster.migrate(lock, next(node for node in cluster.primaries if node is not owner))
    try:
        return answer(owner, name=name, mode="cluster")
    finally:
        migration.cancel()


def cross_slot(request: pytest.FixtureRequest) -> object:
    cluster: RedisCluster = request.getfixturevalue("cluster")
    with transport_to(cluster.primaries[0], mode="cluster") as transport:
        return finish(transport.call(pack(b"EVAL", b"return 1", b"2", b"{a}", b"{b}"), within=5.0))


def no_script(request: pytest.FixtureRequest) -> object:
    with transport_to(request.getfixturevalue("server")) as transport:
        return finish(transport.call(pack(b"EVALSHA", b"0" * 40, b"0"), within=5.0))


def no_permission(request: pytest.FixtureRequest) -> object:
    return answer(request.getfixturevalue("server"), user="poor:s3cret@")


def wrong_type(request: pytest.FixtureRequest) -> object:
    server: RedisServer = request.getfixturevalue("server")
    server.command("SET", keys.mutex_keys("default", "odd")[0], "not ours")
    return answer(server, name="odd")


def wrong_key(request: pytest.FixtureRequest) -> object:
    server: RedisServer = request.getfixturevalue("server")
    server.command("HSET", "odd", "field", "not a plain key")
    with transport_to(server) as transport:
        vote = [b"leasehold:of-odd:%d" % number for number in range(5)]
        return finish(transport.call(SCRIPTS[REDLOCK_CLAIM].by_text([*vote, b"odd"], ()), within=5.0))


def at_connect(user: str) -> Provoked:
    def provoke(request: pytest.FixtureRequest) -> object:
        with RedisServer(password="s3cret") as server, pytest.raises(StoreUnavailable) as caught:
            answer(server, user=user)
        return caught.value

    return provoke


PROVOKED: dict[str, Provoked] = {
    "READONLY": readonly,
    "NOREPLICAS": no_replicas,
    "OOM": out_of_memory,
    "MISCONF": cannot_save,
    "LOADING": loading,
    "MASTERDOWN": master_down,
    "CLUSTERDOWN": cluster_down,
    "MOVED": moved,
    "ASK": lambda request: on_its_way(request, held=False),
    "TRYAGAIN": lambda request: on_its_way(request, held=True),
    "CROSSSLOT": cross_slot,
    "NOSCRIPT": no_script,
    "NOPERM": no_permission,
    "NOAUTH": at_connect(""),
    "WRONGPASS": at_connect(":wr0ng@"),
    "BUSY": busy,
    "WRONGKEY": wrong_key,
    "WRONGTYPE": wrong_type,
}
