"""The password of a PostgreSQL URL is looked for in all that leaves the library, as `test_canary` does for Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import canary
import psycopg
import pytest
import sqlalchemy
from canary import CANARY, FLAVORS, WRONG, Record, awaited, fail, record, run, use

from leasehold import AsyncClient, Client, tables
from leasehold._url import Secret
from leasehold.events import Event
from leasehold.stores import registry
from leasehold.stores.postgres.statements import script
from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.servers import PostgresServer
from leasehold_lab.servers.base import free_port

__all__ = ["record"]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer(password=CANARY) as running:
        running.execute(script())
        yield running


@pytest.fixture(autouse=True)
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(record: Record, client: Any) -> None:
        transport = client.store._transport
        things = [
            client,
            client.store,
            transport,
            transport.settings,
            transport.settings.conninfo(),
            client.owner,
            client.lock("x"),
        ]
        record.objects(
            *things,
            vars(client),
            vars(transport),
            vars(transport.settings),
            transport.settings.options,
            *transport._connections,
        )
        for thing in things:
            record.pickled(thing)

    monkeypatch.setattr(canary, "shown", shown)


@FLAVORS
@pytest.mark.parametrize("mode", ["rows", "session"])
def test_what_works_shows_no_password(kind: Any, server: PostgresServer, record: Record, mode: str) -> None:
    events: list[Event] = []
    url = f"{server.url}?mode={mode}"
    run(lambda client: use(record, client), kind.from_url, url, observer=events.append)
    record.objects(registry.opener(url), registry.opener(Secret(url)), *events)
    record.pickled(registry.opener(url))
    assert events


@FLAVORS
def test_what_fails_shows_no_password(kind: Any, server: PostgresServer, record: Record) -> None:
    there = f"127.0.0.1:{server.port}"
    for url in (
        f"postgresql://postgres:{WRONG}@{there}/postgres",
        f"postgresql://app:{CANARY}@{there}/postgres",
        f"postgresql://postgres:{CANARY}@{there}/nosuch",
        f"postgresql://postgres:{CANARY}@127.0.0.1:{free_port()}/postgres",
        f"postgresql://postgres:{CANARY}@{there}/postgres?sslmode=require",
        f"postgresql://postgres:{CANARY}@{there}/postgres?sslmode=nosuch",
        f"postgresql://postgres:{CANARY}@nowhere.invalid/postgres",
        f"postgresql://postgres:{WRONG}@{there}/postgres?mode=session",
    ):
        run(lambda client: fail(record, client), kind.from_url, url, response_timeout=2.0)
        try:
            tables.create(url)
        except Exception as error:
            record.error(error)
    assert len(record.texts) > 100


@FLAVORS
def test_a_refused_url_shows_no_password(kind: Any, record: Record) -> None:
    for url in (
        f"postgresql://app:{CANARY}@host:port/x",
        f"postgresql://app:{CANARY}@host/x?nosuch=1",
        f"postgresql://host/x?password={CANARY}",
        f"postgresql://app:{CANARY}@host/x?mode={CANARY}",
        f"postgresql://app:{CANARY}@host/x?pool={CANARY}",
        f"postgresql:app:{CANARY}@host/x",
    ):
        with pytest.raises(ValueError, match=r".") as caught:
            kind.from_url(url)
        record.error(caught.value)


@FLAVORS
def test_a_connection_that_breaks_shows_no_password(kind: Any, server: PostgresServer, record: Record) -> None:
    with FaultProxy(server.port) as proxy:
        url = f"postgresql://postgres:{CANARY}@127.0.0.1:{proxy.port}/postgres"
        for verb, where in ((proxy.cut_at, b"SCRAM"), (proxy.drop_reply, b"FOR UPDATE"), (proxy.drop_reply, b"COMMIT")):
            fault = verb(0, where=where)
            run(lambda client: attempt(record, client), kind.from_url, url, response_timeout=0.5)
            assert fault.hits
            fault.remove()


async def attempt(record: Record, client: Any) -> None:
    for call in (lambda: client.lock("x").acquire(timeout=0.1), client.diagnose):
        try:
            record.objects(await awaited(call()))
        except Exception as error:
            record.error(error)
    canary.shown(record, client)


@FLAVORS
def test_an_object_of_ones_own_shows_no_password(kind: Any, server: PostgresServer, record: Record) -> None:
    if kind is Client:
        with psycopg.connect(server.url) as connection:
            run(lambda client: use(record, client), kind.from_client, connection)
        engine = sqlalchemy.create_engine(server.url.replace("postgresql:", "postgresql+psycopg:"))
        run(lambda client: use(record, client), kind.from_client, engine)
        engine.dispose()
        return

    async def body() -> None:
        async with await psycopg.AsyncConnection.connect(server.url) as connection:
            async with AsyncClient.from_client(connection) as client:
                await use(record, client)
            with pytest.raises(TypeError) as caught:
                Client.from_client(connection)
            record.error(caught.value)
            assert await awaited(1) == 1

    asyncio.run(body())


def test_no_command_prints_a_password(server: PostgresServer) -> None:
    import subprocess
    import sys

    wrong = f"postgresql://postgres:{WRONG}@127.0.0.1:{server.port}/postgres"
    for words in (["init"], ["init", "--print"], ["doctor"], ["doctor", "--json"]):
        for url in (server.url, wrong):
            command = [sys.executable, "-m", "leasehold", *words, url]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            assert done.stdout + done.stderr
            assert CANARY not in done.stdout + done.stderr
