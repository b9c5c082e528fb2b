"""A password is looked for in all that leaves the library: messages, logs, reprs, frames, pickles, output."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
from canary import CANARY, FLAVORS, WRONG, Record, awaited, fail, record, run, shown, use

from leasehold import AsyncClient, Client, tables
from leasehold._url import Secret
from leasehold.events import Event
from leasehold.stores import registry
from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.servers import MariaDBServer, RedisCluster, RedisSentinel, RedisServer
from leasehold_lab.servers.base import free_port

__all__ = ["record"]  # pytest finds the fixture here


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer(password=CANARY, users=[f"app on >{CANARY} ~* &* +@all"], unix_socket=True) as running:
        yield running


def urls(server: RedisServer) -> list[str]:
    return [
        f"redis://:{CANARY}@127.0.0.1:{server.port}/0",
        f"redis://app:{CANARY}@127.0.0.1:{server.port}/1",
        f"unix://:{CANARY}@{server.unix_path}",
        f"unix://app:{CANARY}@{server.unix_path}?db=2",
    ]


def bad_urls(server: RedisServer) -> list[str]:
    """Return URLs that are read, and do not lead to a lock."""
    return [
        f"redis://:{WRONG}@127.0.0.1:{server.port}",
        f"redis://app:{WRONG}@127.0.0.1:{server.port}",
        f"redis://{CANARY}@127.0.0.1:{server.port}",
        f"redis://:{CANARY}@127.0.0.1:{server.port}/99",
        f"redis://app:{CANARY}@127.0.0.1:{free_port()}",
        f"rediss://app:{CANARY}@127.0.0.1:{free_port()}",
        f"rediss://app:{CANARY}@127.0.0.1:{server.port}?ssl_ca_certs=/no/such/file",
        f"rediss://app:{CANARY}@127.0.0.1:{server.port}?ssl_keyfile=/no/such/file",
        f"unix://:{CANARY}@/no/such.sock",
        f"redis://app:{CANARY}@nowhere.invalid",
    ]


REFUSED = [
    f"nosuch://app:{CANARY}@host",
    f"redis+sentinel://app:{CANARY}@host",
    f"redis+sentinel://app:{CANARY}@host?sentinel_password={CANARY}",
    f"redis+sentinel://host/name?sentinel_password={CANARY}&nosuch=1",
    f"redis+sentinel://host/name/x?sentinel_password={CANARY}",
    f"redis+cluster://app:{CANARY}@host/1",
    f"redis+cluster://app:{CANARY}@host?db=1",
    f"redis://app:{CANARY}@host:port",
    f"redis://app:{CANARY}@host/x",
    f"redis://app:{CANARY}@host/1?nosuch=1",
    f"redis://app:{CANARY}@host?db=x",
    f"redis://app:{CANARY}@host?db={CANARY}",
    f"redis://host?password={CANARY}",
    f"rediss://app@host?ssl_password={CANARY}",
    f"rediss://app@host?ssl_cert_reqs={CANARY}",
    f"redis://app:{CANARY}@a,b",
    f"redis://app:{CANARY} @host",
    f"redis://app:{CANARY}#@host",
    f"redis://app:1/{CANARY}@host",
    f"redis://app:1?{CANARY}=1@host",
    f"redis://app:%ff{CANARY}@host",
    f"redis://[{CANARY}@host",
    f"unix://app:{CANARY}@host/path",
    f"unix://:{CANARY}@",
    f"redis:app:{CANARY}@host",
    f"//app:{CANARY}@host",
]


@FLAVORS
def test_what_works_shows_no_password(kind: Any, server: RedisServer, record: Record) -> None:
    events: list[Event] = []
    for url in urls(server):
        run(lambda client: use(record, client), kind.from_url, url, observer=events.append)
        record.objects(registry.opener(url), registry.opener(Secret(url)))
        record.pickled(registry.opener(url))
    record.objects(*events)
    assert events


@FLAVORS
def test_what_fails_shows_no_password(kind: Any, server: RedisServer, record: Record) -> None:
    for url in bad_urls(server):
        run(lambda client: fail(record, client), kind.from_url, url, response_timeout=0.5)
    assert len(record.texts) > 100


@pytest.mark.parametrize("kind", [AsyncClient, pytest.param(Client, marks=pytest.mark.nightly)])
def test_several_servers_show_no_password(kind: Any, record: Record) -> None:
    secrets: dict[str, Any] = {"password": CANARY, "users": [f"app on >{CANARY} ~* &* +@all"]}
    watcher = f"watcher on >{CANARY} ~* &* +@all"
    with (
        RedisSentinel(replicas=1, sentinel_password=CANARY, sentinel_users=[watcher], **secrets) as sentinel,
        RedisCluster(replicas=0, **secrets) as cluster,
    ):
        options = f"?sentinel_username=watcher&sentinel_password={CANARY}"
        as_user = sentinel.url.replace("//:", "//app:").partition("?")[0] + options
        for url in (sentinel.url, as_user, cluster.url, cluster.url.replace("//:", "//app:")):
            run(lambda client: use(record, client), kind.from_url, url)
            record.objects(registry.opener(url), registry.opener(Secret(url)))
            record.pickled(registry.opener(url))
        wrong = f"{CANARY}wrong"
        for url in (
            as_user.replace(f"app:{CANARY}", f"app:{wrong}"),
            as_user.replace(f"word={CANARY}", f"word={wrong}"),
            as_user.replace("/locks", "/other"),
            cluster.url.replace(CANARY, wrong),
            f"redis+cluster://:{CANARY}@127.0.0.1:{free_port()}",
            f"redis+sentinel://:{CANARY}@127.0.0.1:{free_port()}/x{options}",
            f"rediss+sentinel://:{CANARY}@127.0.0.1:{sentinel.sentinels[0].port}/x{options}",
        ):
            run(lambda client: fail(record, client), kind.from_url, url, response_timeout=0.5)


@FLAVORS
def test_a_refused_url_shows_no_password(kind: Any, record: Record) -> None:
    for url in REFUSED:
        with pytest.raises(ValueError, match=r".") as caught:
            kind.from_url(url)
        record.error(caught.value)
    for url in (f"redis://:{CANARY}@h", f"redis://app:{CANARY}@h"):
        for options in ({"namespace": ""}, {"response_timeout": 0}):
            with pytest.raises(ValueError, match=r"namespace|response_timeout") as caught:
                kind.from_url(url, **options)
            record.error(caught.value)
    with pytest.raises(TypeError) as wrong:
        kind.from_url(f"redis://:{CANARY}@h".encode())
    record.error(wrong.value)


@FLAVORS
def test_a_connection_that_breaks_shows_no_password(kind: Any, server: RedisServer, record: Record) -> None:
    with FaultProxy(server.port) as proxy:
        url = f"redis://app:{CANARY}@127.0.0.1:{proxy.port}"
        for side, verb in ((b"HELLO", proxy.cut_at), (b"HELLO", proxy.drop_reply), (b"EVALSHA", proxy.drop_reply)):
            fault = verb(0, where=side)

            async def attempt(client: Any) -> None:
                for call in (lambda: client.lock("x").acquire(timeout=0.1), client.diagnose):
                    try:
                        record.objects(await awaited(call()))
                    except Exception as error:
                        record.error(error)
                shown(record, client)

            run(attempt, kind.from_url, url, response_timeout=0.2)
            fault.remove()
        proxy.blackhole()
        run(lambda client: fail(record, client), kind.from_url, url, response_timeout=0.2)


class Provider(redis.CredentialProvider):
    def get_credentials(self) -> tuple[str, str]:
        return "app", CANARY


@FLAVORS
def test_a_client_of_ones_own_shows_no_password(kind: Any, server: RedisServer, record: Record) -> None:
    module = redis if kind is Client else redis.asyncio
    for options in (
        {"port": server.port, "password": CANARY},
        {"port": server.port, "credential_provider": Provider()},
        {"unix_socket_path": server.unix_path, "username": "app", "password": CANARY},
    ):
        run(lambda client: use(record, client), kind.from_client, module.Redis(**options))
    encrypted = {"port": free_port(), "password": CANARY, "ssl": True}
    if "ssl_password" in inspect.signature(module.Redis).parameters:  # under asyncio not in redis-py 5
        encrypted["ssl_password"] = CANARY
    for options in ({"password": WRONG}, encrypted):
        client = module.Redis(**({"port": server.port} | options))
        run(lambda client: fail(record, client), kind.from_client, client, response_timeout=0.5)
        other = AsyncClient if kind is Client else Client
        with pytest.raises(TypeError, match="does not fit") as caught:
            other.from_client(client)
        record.error(caught.value)


@pytest.fixture(scope="module")
def database() -> Iterator[MariaDBServer]:
    with MariaDBServer(password=CANARY) as running:
        tables.create(running.url)
        yield running


@FLAVORS
@pytest.mark.parametrize("mode", ["", "?mode=session"], ids=["rows", "session"])
def test_a_database_shows_no_password(kind: Any, mode: str, database: MariaDBServer, record: Record) -> None:
    def attempt(url: str, *, quick: bool = False) -> None:
        async def work(client: Any) -> None:
            calls = [lambda: client.lock("x").acquire(timeout=0.2), client.diagnose, client.holds]
            for call in calls[:1] if quick else calls:
                try:
                    found = await awaited(call())
                    record.objects(found, *(found if isinstance(found, list) else ()))
                except Exception as error:
                    record.error(error)
            store = client.store
            rows = getattr(store, "_rows", store)
            transport = rows.mysql
            parts = [client, store, rows, transport, transport.pool, rows._settings]
            parts += [*transport.pool._idle, *transport.pool._used]
            record.objects(*parts, vars(rows._settings), rows._settings.options)
            for part in parts:
                record.pickled(part)

        run(work, kind.from_url, url, response_timeout=0.5)
        record.objects(registry.opener(url))
        record.pickled(registry.opener(url))

    good = database.url + mode
    with FaultProxy(database.port) as proxy:
        attempt(good)
        attempt(good.replace(CANARY, WRONG))
        attempt(good.replace("/locks", "/nowhere"))
        attempt(good.replace(f":{database.port}/", f":{free_port()}/"))
        attempt(good.replace("127.0.0.1", "nowhere.invalid"))
        attempt(good + ("&" if mode else "?") + "ssl=true")
        through = good.replace(f":{database.port}/", f":{proxy.port}/")
        for fault in (proxy.cut_at(2), proxy.drop_reply(0, where=b"SELECT"), proxy.blackhole()):
            attempt(through, quick=True)
            fault.remove()
    for url in (f"mysql://app:{CANARY}@host", f"mysql://app:{CANARY}@a,b/db", f"mysql://:{CANARY}@host/db"):
        with pytest.raises(ValueError, match=r".") as caught:
            kind.from_url(url)
        record.error(caught.value)


COMMANDS = [
    ("ls",),
    ("ls", "--json"),
    ("show", "x"),
    ("doctor",),
    ("doctor", "--json"),
    ("break", "x", "--token", "1", "--yes"),
    ("run", "x", "--", "true"),
    ("nosuch",),
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_command_prints_a_password(words: tuple[str, ...], server: RedisServer) -> None:
    good, wrong = urls(server)[1], bad_urls(server)[0]
    down, malformed = f"redis://app:{CANARY}@127.0.0.1:{free_port()}", f"redis://app:{CANARY}@host:port"
    results: list[str] = []

    def start(url: str, *more: str) -> None:
        environment = {**os.environ, "LEASEHOLD_URL": url}
        command = [sys.executable, "-m", "leasehold", words[0], *more, *words[1:]]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        results.append(done.stdout + done.stderr)

    threads = [threading.Thread(target=start, args=(url,)) for url in (good, wrong, down, malformed)]
    threads.append(threading.Thread(target=start, args=("memory:", "--url", wrong)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 5
    assert any(results)
    assert [text for text in results if CANARY in text] == []
