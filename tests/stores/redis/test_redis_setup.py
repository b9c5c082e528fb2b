"""Connecting to a Redis server: TLS, passwords, sockets, adopted clients, and the messages when it fails."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis
import redis.asyncio

from leasehold import AsyncClient, Client, StoreUnavailable, Unsupported
from leasehold._runtimes.base import Flavor
from leasehold.stores.redis.connection.base import REMEDIES, ReplyError, pack, refused
from leasehold.stores.redis.openers import adopt
from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import Certificates, RedisServer
from leasehold_lab.servers.base import free_port
from support.flavors import both
from support.stores.redis.refusals import cluster_node, refusal

PASSWORD = "p@ss/wörd?#%:&= x"


@pytest.fixture(scope="module")
def secured() -> Iterator[RedisServer]:
    with RedisServer(password=PASSWORD, users=["app on >sesame ~* &* +@all"], unix_socket=True) as server:
        yield server


@pytest.fixture(scope="module")
def encrypted() -> Iterator[RedisServer]:
    with RedisServer(tls=True, password="secret", config={"bind": "127.0.0.1 127.0.0.2"}) as server:
        yield server


def works(harness: Harness, where: Any, **options: Any) -> None:
    """Acquire, wait for a hand-over, release."""

    async def body(harness: Harness) -> None:
        async with harness.client(where, **options) as locks:
            hold = await locks.lock("x").acquire(timeout=5)
            assert hold is not None
            waiter = harness.spawn(lambda: locks.lock("x").acquire(timeout=5))
            while not (await locks.inspect("x")).waiters:
                await harness.sleep(0.01)
            await hold.release()
            await (await waiter.result()).release()

    harness.run(body)


# --- getting there -----------------------------------------------------------------------------------------------


@both
def test_passwords_users_sockets_and_databases(harness: Harness, secured: RedisServer) -> None:
    secret, at = quote(PASSWORD, safe=""), f"127.0.0.1:{secured.port}"
    works(harness, f"redis://:{secret}@{at}")
    works(harness, f"redis://default:{secret}@{at}/0")
    works(harness, f"valkey://app:sesame@{at}/3")
    works(harness, f"redis://app:sesame@{at}?db=4")
    works(harness, f"unix://app:sesame@{secured.unix_path}?db=5")
    keyspace = str(secured.command("INFO", "keyspace"))
    assert [f"db{number}" in keyspace for number in range(6)] == [True, False, False, True, True, True]


def by_tls(server: RedisServer, host: str = "127.0.0.1", more: str = "") -> str:
    assert server.certificates is not None
    return f"rediss://:secret@{host}:{server.port}/0?ssl_ca_certs={server.certificates.authority}{more}"


@both
def test_tls_with_a_private_certificate_authority(harness: Harness, encrypted: RedisServer) -> None:
    works(harness, by_tls(encrypted))
    works(harness, by_tls(encrypted, "localhost").replace("rediss", "valkeys"))
    files = encrypted.certificates
    assert files is not None
    works(harness, by_tls(encrypted, more=f"&ssl_certfile={files.client}&ssl_keyfile={files.client_key}"))


@both
def test_tls_verifies_the_server(harness: Harness, encrypted: RedisServer, tmp_path: Path) -> None:
    error = refusal(harness, f"rediss://:secret@127.0.0.1:{encrypted.port}")
    assert "ssl_ca_certs=FILE" in str(error)
    stranger = Certificates.make(tmp_path).authority
    assert "ssl_ca_certs" in str(
        refusal(harness, f"rediss://:secret@127.0.0.1:{encrypted.port}?ssl_ca_certs={stranger}")
    )
    error = refusal(harness, by_tls(encrypted, "127.0.0.2"))  # the same server, by a name that it is not certified for
    assert "another host name" in str(error)
    works(harness, by_tls(encrypted, "127.0.0.2", "&ssl_check_hostname=false"))
    assert "no such file" in str(refusal(harness, f"rediss://127.0.0.1:{encrypted.port}?ssl_ca_certs=/no/such.pem"))


@both
def test_tls_against_a_plain_port_and_the_reverse(
    harness: Harness, encrypted: RedisServer, secured: RedisServer
) -> None:
    assert "TLS" in str(refusal(harness, f"rediss://127.0.0.1:{secured.port}"))
    assert "rediss://" in str(refusal(harness, f"redis://127.0.0.1:{encrypted.port}"))


# --- clients that exist already ----------------------------------------------------------------------------------


class Provider(redis.CredentialProvider):
    def get_credentials(self) -> tuple[str, str]:
        return "app", "sesame"


def clients(module: Any, secured: RedisServer, encrypted: RedisServer) -> list[Any]:
    files = encrypted.certificates
    assert files is not None
    return [
        module.Redis(port=secured.port, password=PASSWORD),
        module.Redis(port=secured.port, username="app", password="sesame", db=7, decode_responses=True, protocol=2),
        module.Redis(port=secured.port, credential_provider=Provider()),
        module.Redis(unix_socket_path=secured.unix_path, password=PASSWORD),
        module.Redis.from_url(f"redis://app:sesame@127.0.0.1:{secured.port}/8"),
        module.Redis(connection_pool=module.BlockingConnectionPool(port=secured.port, password=PASSWORD)),
        module.Redis(port=encrypted.port, password="secret", ssl=True, ssl_ca_certs=str(files.authority)),
        module.Redis(port=encrypted.port, password="secret", ssl=True, ssl_cert_reqs="none"),
    ]


def test_a_blocking_client_is_adopted(secured: RedisServer, encrypted: RedisServer) -> None:
    for client in clients(redis, secured, encrypted):
        with Client.from_client(client) as locks, locks.lock("x") as hold:
            assert hold.token
            assert all(secret not in repr(locks) for secret in (PASSWORD, "sesame", "secret"))
        with pytest.raises(TypeError, match=r"AsyncClient with redis\.asyncio\.Redis"):
            AsyncClient.from_client(client)
        client.close()


def test_a_credential_provider_may_use_a_lock_of_another_client(secured: RedisServer) -> None:
    class Fetching(Provider):
        def get_credentials(self) -> tuple[str, str]:
            with tokens.lock("fetch"):
                return super().get_credentials()

    redis_client = redis.Redis(port=secured.port, credential_provider=Fetching())
    with Client.from_url("memory:tokens") as tokens, Client.from_client(redis_client) as locks, locks.lock("x"):
        pass


@both
def test_a_credential_provider_may_fail_for_a_while(harness: Harness, secured: RedisServer) -> None:
    """With an error of a cloud's own library: a release is repeated, and a waiter waits on."""

    class TokenServiceError(Exception): ...

    class Failing(Provider):
        broken = False

        def get_credentials(self) -> tuple[str, str]:
            if self.broken:
                raise TokenServiceError("503\nand its page")
            return super().get_credentials()

        async def get_credentials_async(self) -> tuple[str, str]:
            return self.get_credentials()

    async def body(harness: Harness) -> None:
        provider, flavor = Failing(), harness.runtime.flavor
        module: Any = redis.asyncio if flavor is Flavor.ASYNC else redis
        mine = adopt(module.Redis(port=secured.port, credential_provider=provider), flavor)
        locks, others = harness.client(mine), harness.client(f"unix://:{quote(PASSWORD, safe='')}@{secured.unix_path}")
        hold, busy = [await each.acquire(timeout=5.0) for each in (locks.lock("x", lease=20.0), others.lock("y"))]
        waiter = harness.spawn(lambda: locks.lock("y", lease=9.0).acquire(timeout=20.0))
        while not (await others.inspect("y")).waiters:
            await harness.sleep(0.01)
        provider.broken = True
        secured.command("CLIENT", "KILL", "USER", "app")
        assert not await hold.release()
        with pytest.raises(StoreUnavailable, match="credential provider failed: TokenServiceError: 503; check"):
            await locks.lock("z").acquire(timeout=0)
        provider.broken = False
        assert await others.lock("x").acquire(timeout=5.0) is not None
        await busy.release()
        assert await waiter.result() is not None

    harness.run(body)


def test_a_credential_provider_that_uses_a_lock_of_its_own_client_is_refused(secured: RedisServer) -> None:
    """Each connection would need another one before it, until the server accepts no more."""
    calls = list[int]()

    class Fetching(Provider):
        def get_credentials(self) -> tuple[str, str]:
            calls.append(1)
            if len(calls) > 20:
                return super().get_credentials()
            with locks.lock("fetch"):
                return super().get_credentials()

    redis_client = redis.Redis(port=secured.port, credential_provider=Fetching())
    with (
        Client.from_client(redis_client) as locks,
        pytest.raises(RuntimeError, match="another client"),
        locks.lock("x"),
    ):
        pass
    assert len(calls) < 10


def test_an_asyncio_client_is_adopted(secured: RedisServer, encrypted: RedisServer) -> None:
    async def body() -> None:
        for client in clients(redis.asyncio, secured, encrypted):
            async with AsyncClient.from_client(client) as locks, locks.lock("x") as hold:
                assert hold.token
            with pytest.raises(TypeError, match=r"Client with redis\.Redis"):
                Client.from_client(client)
            await client.aclose()

    asyncio.run(body())


def test_an_unverified_client_is_adopted_and_doctor_warns(encrypted: RedisServer) -> None:
    client = redis.Redis(port=encrypted.port, password="secret", ssl=True, ssl_cert_reqs="none")
    with Client.from_client(client) as locks:
        (finding,) = [finding for finding in locks.diagnose() if finding.subject == "transport"]
        assert "not verified" in finding.found
        assert finding.severity.name == "WARNING"


def test_clients_of_the_wrong_flavor_or_kind_are_refused() -> None:
    sentinel = redis.sentinel.Sentinel([("127.0.0.1", 1)])
    cluster = redis.RedisCluster.__new__(redis.RedisCluster)  # its constructor would look for the cluster
    for client in (sentinel, sentinel.master_for("main"), cluster):
        with pytest.raises(TypeError, match="does not fit this client; use"):
            adopt(client, Flavor.ASYNC)
    for client in (
        redis.asyncio.Sentinel([("127.0.0.1", 1)]).master_for("main"),
        redis.asyncio.RedisCluster(host="127.0.0.1", port=1),
    ):
        with pytest.raises(TypeError, match="does not fit this client; use"):
            adopt(client, Flavor.SYNC)
    with pytest.raises(TypeError, match=r"client for replicas; pass one made with master_for"):
        adopt(sentinel.slave_for("main"), Flavor.SYNC)
    with pytest.raises(TypeError, match="cannot make locks from a object"):
        Client.from_client(object())


# --- servers that cannot be used ---------------------------------------------------------------------------------


@both
def test_a_port_without_a_server(harness: Harness, tmp_path: Path) -> None:
    assert "check host and port" in str(refusal(harness, f"redis://127.0.0.1:{free_port()}"))
    assert "check the path" in str(refusal(harness, f"unix://{tmp_path}/none.sock"))


@both
@pytest.mark.parametrize("host", ["nowhere.invalid", "a..b", "a" * 70])
def test_a_host_that_has_no_address(harness: Harness, host: str) -> None:
    error = refusal(harness, f"redis://{host}:1", within=15.0)  # as long as the system's resolver takes
    assert "host name" in str(error) or "DNS" in str(error) or "check host" in str(error)


@both
@pytest.mark.parametrize("how", ["deaf", "blackhole"])
def test_a_silent_server_costs_the_response_timeout(harness: Harness, how: str, redis_server: RedisServer) -> None:
    with FaultProxy(redis_server.port) as proxy:
        getattr(proxy, how)()
        error = refusal(harness, f"redis://127.0.0.1:{proxy.port}", within=1.0 + 1.0)  # and a second to leave, at most
        assert "check that it runs" in str(error)
        proxy.heal()


@both
def test_passwords_that_are_wrong_or_missing(harness: Harness, secured: RedisServer) -> None:
    at = f"127.0.0.1:{secured.port}"
    assert "put the password into the URL" in str(refusal(harness, f"redis://{at}"))
    assert "is wrong" in str(refusal(harness, f"redis://:wrong@{at}"))
    assert "is wrong" in str(refusal(harness, f"redis://nobody:sesame@{at}"))


@both
def test_a_password_for_a_server_without_one(harness: Harness, redis_server: RedisServer) -> None:
    works(harness, f"redis://:any@127.0.0.1:{redis_server.port}")  # the default user has `nopass`: the server takes it


@both
def test_a_database_that_the_server_does_not_have(harness: Harness, redis_server: RedisServer) -> None:
    assert "'databases'" in str(refusal(harness, f"redis://127.0.0.1:{redis_server.port}/99"))


@both
def test_a_replica_and_a_node_of_a_cluster(harness: Harness, redis_server: RedisServer) -> None:
    with RedisServer(config={"replicaof": f"127.0.0.1 {redis_server.port}"}) as replica:
        error = refusal(harness, replica.url)
        assert str(error).count("is a replica; connect to the primary") == 1
        assert "did not answer" not in str(error)
    with cluster_node() as node:
        error = refusal(harness, node.url.removesuffix("/0"))
        assert isinstance(error, Unsupported)
        assert "node of a cluster" in str(error)


@both
def test_a_server_that_takes_no_more_clients(harness: Harness) -> None:
    with RedisServer(config={"maxclients": "2"}) as server:
        taken = [server.connect(), server.connect()]
        assert "maxclients" in str(refusal(harness, server.url))
        for connection in taken:
            connection.close()


def test_a_url_cannot_switch_verification_off(encrypted: RedisServer) -> None:
    with pytest.raises(ValueError, match="always verified"):
        Client.from_url(by_tls(encrypted, more="&ssl_cert_reqs=none"))


COMMANDS = {
    "CROSSSLOT": ("EVAL", "return 1", "2", "a", "b"),
    "CLUSTERDOWN": ("EVAL", "return 1", "1", "a"),
    "NOSCRIPT": ("EVALSHA", "0" * 40, "0"),
    "NOAUTH": ("GET", "x"),
    "WRONGPASS": ("AUTH", "default", "wrong"),
}


@pytest.mark.parametrize("code", COMMANDS)
def test_the_other_rows_of_the_table_that_one_server_answers(code: str, secured: RedisServer) -> None:
    with cluster_node() as node:
        if code == "CROSSSLOT":
            node.command("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
            while "cluster_state:ok" not in str(node.command("CLUSTER", "INFO")):
                time.sleep(0.05)
        target = secured if code in ("NOAUTH", "WRONGPASS") else node
        with socket.create_connection(("127.0.0.1", target.port), timeout=5.0) as link:
            link.sendall(pack(*(word.encode() for word in COMMANDS[code])))
            line = link.recv(4096).decode()
        error = ReplyError(line[1:].strip())
        assert error.code == code
        assert not refused("x", error).unknown
        assert REMEDIES[code] in str(refused("x", error))
