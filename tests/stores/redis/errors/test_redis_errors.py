"""Every error reply of a server, provoked on a real one, and its class: not applied, or unknown."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator

import pytest

from leasehold._runtimes.base import finish
from leasehold._url import parse
from leasehold.errors import StoreUnavailable
from leasehold.stores.redis.connection import settings
from leasehold.stores.redis.connection.base import (
    NOT_APPLIED,
    PASSING,
    REMEDIES,
    NotPermitted,
    Redirected,
    ReplyError,
    RetryableError,
    pack,
    refused,
)
from leasehold.stores.redis.connection.blocking import BlockingTransport
from leasehold.stores.redis.connection.connection import ESTABLISHED, Connection
from leasehold.stores.redis.strict.quorum import Strict
from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.servers import RedisCluster, RedisReplicas, RedisServer
from leasehold_lab.servers.base import free_port
from support.stores.redis.errors import PROVOKED, RUNTIME, transport_to


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer(users=["poor on >s3cret ~* &* +@all -hset"]) as running:
        yield running


@pytest.fixture(scope="module")
def pair() -> Iterator[RedisReplicas]:
    with RedisReplicas(1) as group:
        yield group


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with RedisCluster(replicas=0, full_coverage=False) as group:
        yield group


def test_every_error_of_the_table_is_provoked() -> None:
    assert PROVOKED.keys() == NOT_APPLIED == REMEDIES.keys()


@pytest.mark.usefixtures("server", "pair", "cluster")
@pytest.mark.parametrize("code", sorted(PROVOKED))
def test_a_listed_error_is_not_applied_and_names_the_remedy(code: str, request: pytest.FixtureRequest) -> None:
    said = PROVOKED[code](request)
    if isinstance(said, StoreUnavailable):  # it came while connecting
        error: StoreUnavailable = said
    else:
        assert isinstance(said, ReplyError), said
        assert said.code == code
        error = refused("here", said)
    assert not error.unknown
    assert REMEDIES[code] in str(error)
    assert isinstance(error, RetryableError) is (code in PASSING or code in ("MOVED", "ASK"))
    assert isinstance(error, Redirected) is (code in ("MOVED", "ASK"))
    assert isinstance(error, NotPermitted) is (code == "NOPERM")
    assert "s3cret" not in str(error)
    assert "wr0ng" not in str(error)


def test_a_redirection_names_slot_and_address() -> None:
    cases = {
        "MOVED 3999 127.0.0.1:6381": (3999, ("127.0.0.1", 6381), False),
        "ASK 1 [::1]:7000": (1, ("::1", 7000), True),
        "MOVED 2 redis.example:1": (2, ("redis.example", 1), False),
        "MOVED 2 :7001": (2, ("asked", 7001), False),
        "MOVED 2 ?:7001": (2, ("asked", 7001), False),
    }
    for text, (slot, address, ask) in cases.items():
        error = refused("here", ReplyError(text), "asked")
        assert isinstance(error, Redirected)
        assert (error.slot, error.address, error.ask) == (slot, address, ask)


def test_an_unlisted_error_is_unknown(server: RedisServer) -> None:
    with transport_to(server) as transport:
        reply = finish(transport.call(pack(b"EVAL", b"return redis.error_reply('ERR odd')", b"0"), within=5.0))
        assert isinstance(reply, ReplyError)
        assert refused("here", reply).unknown


def test_a_command_ended_by_a_role_change_is_unknown() -> None:
    """A server that becomes a replica answers UNBLOCKED to blocked commands, such as the WAIT of strict mode."""
    with RedisServer() as server:
        said: list[object] = []
        with transport_to(server) as transport:
            waiting = threading.Thread(
                target=lambda: said.append(finish(transport.call(pack(b"WAIT", b"1", b"5000"), within=6.0)))
            )
            waiting.start()
            until = time.monotonic() + 5
            while "blocked_clients:1" not in str(server.command("INFO", "clients")):
                assert time.monotonic() < until
                time.sleep(0.01)
            server.command("REPLICAOF", "127.0.0.1", free_port())
            waiting.join()
        (reply,) = said
        assert isinstance(reply, ReplyError)
        assert reply.code == "UNBLOCKED"
        assert refused("here", reply).unknown
        strict = Strict(replicas=1)
        assert not strict.acknowledged(reply, 1)


@pytest.mark.parametrize("fault", ["silence", "reset", "end", "refusal"])
def test_no_reply_is_unknown_unless_nothing_was_sent(server: RedisServer, fault: str) -> None:
    with FaultProxy(server.port) as proxy:
        reached = settings.from_url(parse(f"redis://127.0.0.1:{proxy.port}"))
        transport = BlockingTransport(RUNTIME, reached, b"", lambda _: None, lambda: None)
        finish(transport.call(pack(b"TIME"), within=5.0))
        if fault == "silence":
            proxy.blackhole()
        elif fault == "refusal":
            proxy.stop()
            time.sleep(0.02)  # then the connection is looked at before the call
        elif fault == "reset":
            proxy.cut_at(where=b"TIME")
        else:
            proxy.drop_reply(where=b"TIME")
        with pytest.raises(StoreUnavailable) as caught:
            finish(transport.call(pack(b"TIME"), within=0.5))
        assert caught.value.unknown is (fault != "refusal")
        assert re.search(r"did not answer|cannot connect", str(caught.value))
        finish(transport.close())


def test_a_connection_that_was_used_just_now_is_not_looked_at(server: RedisServer) -> None:
    """A look is a system call, which short blocks would pay twice."""
    transport = BlockingTransport(RUNTIME, settings.from_url(parse(server.url)), b"", lambda _: None, lambda: None)
    finish(transport.call(pack(b"TIME"), within=5.0))
    (connection,) = transport._idle
    looks: list[str] = []
    connection.state = lambda: looks.append("a look") or ESTABLISHED  # type: ignore[func-returns-value]
    connection._used = RUNTIME.now() + 60.0  # however late this machine is
    finish(transport.call(pack(b"TIME"), within=5.0))
    assert looks == []
    connection._used = RUNTIME.now() - 0.02
    finish(transport.call(pack(b"TIME"), within=5.0))
    assert looks == ["a look"]
    assert transport._idle == [connection]
    finish(transport.close())


def test_a_slow_start_leaves_time_for_the_reply(server: RedisServer) -> None:
    """Else every call would connect, send its command, and give up before the reply, for ever."""

    async def slowly(within: float) -> Connection:
        time.sleep(1.6)  # noqa: ASYNC251 such as a name server that does not answer
        return await connect(within)

    with FaultProxy(server.port) as proxy:
        transport = BlockingTransport(
            RUNTIME, settings.from_url(parse(f"redis://127.0.0.1:{proxy.port}")), b"", lambda _: None, lambda: None
        )
        connect = transport.connect
        transport.connect = slowly  # type: ignore[method-assign]
        proxy.delay(0.1, where=b"ECHO")
        assert finish(transport.call(pack(b"ECHO", b"first"), within=1.5)) == b"first"
        assert len(transport._idle) == 1
        finish(transport.close())
