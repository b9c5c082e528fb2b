"""Every way in which a connection to PostgreSQL fails, provoked on a real server, and what people are told of it.

libpq gives the text of such an error and not its code, so both the code and the remedy go by words, row by row.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

import psycopg
import pytest

from leasehold import AsyncClient, Client, StoreUnavailable
from leasehold.stores._sql.transport import Refused
from leasehold.stores.postgres.connection.errors import HINTS
from leasehold.stores.postgres.statements import script
from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.servers import PostgresServer
from leasehold_lab.servers.base import free_port
from support.stores.refusals import closed, refusals

USERS = """
    CREATE ROLE app LOGIN PASSWORD 'right';
    CREATE ROLE few LOGIN CONNECTION LIMIT 0;
    CREATE ROLE locked_out NOLOGIN;
    GRANT ALL ON ALL TABLES IN SCHEMA public TO app;
"""

DATABASES = (
    "CREATE DATABASE limited CONNECTION LIMIT 0",
    "CREATE DATABASE shut ALLOW_CONNECTIONS false",
    "CREATE DATABASE private",
    "REVOKE CONNECT ON DATABASE private FROM PUBLIC",
)

Provoked = Callable[[pytest.FixtureRequest], Sequence[StoreUnavailable]]


@pytest.fixture(scope="module")
def server(outlive: set[int]) -> Iterator[PostgresServer]:
    with PostgresServer(config={"max_connections": "8", "superuser_reserved_connections": "2"}) as running:
        outlive.add(running.pid)
        running.execute(script() + USERS)
        for statement in DATABASES:
            running.query(statement)
        yield running


@pytest.fixture(scope="module")
def standby(outlive: set[int]) -> Iterator[PostgresServer]:
    with PostgresServer() as running:
        running.terminate()
        (running.data / "standby.signal").touch()
        running.start()
        outlive.add(running.pid)
        yield running


def url(server: PostgresServer, user: str = "postgres", database: str = "postgres", options: str = "") -> str:
    return f"postgresql://{user}@127.0.0.1:{server.port}/{database}{options}"


# --- how each is provoked ----------------------------------------------------------------------------------------


def at(
    user: str = "postgres", database: str = "postgres", options: str = "", *, fixture: str = "server", mode: str = ""
) -> Provoked:
    """Connect so; by a rule of pg_hba.conf if one is given."""

    def provoke(request: pytest.FixtureRequest) -> Sequence[StoreUnavailable]:
        server: PostgresServer = request.getfixturevalue(fixture)
        with lets_in(server, mode) if mode else contextlib.nullcontext():
            return refusals(url(server, user, database, options))

    return provoke


@contextlib.contextmanager
def lets_in(server: PostgresServer, mode: str) -> Iterator[None]:
    """Let the server have this one rule for those who come by TCP."""
    path = server.data / "pg_hba.conf"
    before = path.read_text()
    path.write_text(f"local all all trust\n{mode}\n")
    server.configure()
    try:
        yield
    finally:
        path.write_text(before)
        server.configure()


def full(user: str) -> Provoked:
    """Use up all connections that this user may have."""

    def provoke(request: pytest.FixtureRequest) -> Sequence[StoreUnavailable]:
        server: PostgresServer = request.getfixturevalue("server")
        with contextlib.ExitStack() as opened:
            with contextlib.suppress(psycopg.OperationalError):
                while True:
                    opened.callback(server.connect(user=user).close)
            return refusals(url(server, user))

    return provoke


class Unready(PostgresServer):
    """A standby that counts as started as soon as it says of itself that it is not ready."""

    def _arguments(self) -> Sequence[str]:
        arguments = super()._arguments()
        (self.data / "standby.signal").touch()
        return arguments

    def _ready(self) -> bool:
        try:
            self.query("SELECT 1")
        except psycopg.OperationalError as error:
            return "the database system is" in str(error)
        return False


def starting(request: pytest.FixtureRequest) -> Sequence[StoreUnavailable]:
    """It recovers from an archive that is slow."""
    with Unready(config={"restore_command": "'sleep 1; false'"}) as server:
        return refusals(url(server))


def replaying(request: pytest.FixtureRequest) -> Sequence[StoreUnavailable]:
    """It is a standby that takes no queries; before it says so it says that it is starting up."""
    with Unready(config={"hot_standby": "off"}) as server:
        until = time.monotonic() + 10
        while "starting up" in str((said := refusals(url(server)))[0]):
            assert time.monotonic() < until
        return said


def shutting_down(request: pytest.FixtureRequest) -> Sequence[StoreUnavailable]:
    """It waits for the last session to end."""
    with PostgresServer() as server, server.connect():
        os.kill(server.pid, signal.SIGTERM)
        until = time.monotonic() + 10
        while "shutdown request" not in server.log():
            assert time.monotonic() < until
            time.sleep(0.01)
        return refusals(url(server))


def crashed(request: pytest.FixtureRequest) -> Sequence[StoreUnavailable]:
    """One of its processes crashed, and it waits for another to end; then it recovers, and what was held is held."""
    with PostgresServer() as server, Client.from_url(server.url) as client:
        server.execute(script())
        hold = client.lock("kept", lease=60.0).acquire()
        assert hold is not None
        with server.connect() as stuck, server.connect() as victim:
            os.kill(stuck.info.backend_pid, signal.SIGSTOP)
            os.kill(victim.info.backend_pid, signal.SIGKILL)
            until = time.monotonic() + 10
            while "terminating any other active" not in server.log():
                assert time.monotonic() < until
                time.sleep(0.01)
            said = refusals(url(server))
            os.kill(stuck.info.backend_pid, signal.SIGKILL)
        while True:
            with contextlib.suppress(StoreUnavailable):
                (holder,) = client.inspect("kept").holders  # type: ignore[union-attr]
                break
            assert time.monotonic() < until
        assert holder.token == hold.token
        hold.release()
        return said


def dropped(request: pytest.FixtureRequest) -> Sequence[StoreUnavailable]:
    """The database of a client is dropped."""
    server: PostgresServer = request.getfixturevalue("server")
    server.query("CREATE DATABASE gone")
    with server.connect(dbname="gone") as there:
        there.execute(script())
    with Client.from_url(url(server, database="gone")) as client:
        client.lock("x").acquire(timeout=5).release()  # type: ignore[union-attr]
        server.query("DROP DATABASE gone WITH (FORCE)")
        with pytest.raises(StoreUnavailable) as caught:
            client.lock("x").acquire(timeout=5)
    return [caught.value, *refusals(url(server, database="gone"))]


def out_of_locks(request: pytest.FixtureRequest) -> Sequence[StoreUnavailable]:
    """Another session has so many locks that there is no room for the one that each new session takes."""
    server: PostgresServer = request.getfixturevalue("server")
    with server.connect() as greedy:
        with pytest.raises(psycopg.errors.OutOfMemory):
            greedy.execute("SELECT pg_advisory_lock(g) FROM generate_series(1, 1000000) g")
        said = refusals(url(server))
        greedy.execute("SELECT pg_advisory_unlock_all()")  # now, and not when the server sees that we hung up
    return said


def nobody_listens(request: pytest.FixtureRequest) -> Sequence[StoreUnavailable]:
    return refusals(f"postgresql://postgres@127.0.0.1:{free_port()}/postgres")


def closed_folder(request: pytest.FixtureRequest) -> Sequence[StoreUnavailable]:
    with closed(request.getfixturevalue("tmp_path")) as folder:
        return refusals(f"postgresql:///postgres?user=postgres&host={folder}")


def strangers_certificate(request: pytest.FixtureRequest) -> Sequence[StoreUnavailable]:
    with PostgresServer(tls=True) as server:
        assert server.certificates is not None
        files = (server.certificates.client, server.folder / "none.pem")  # another's, and none
        return [
            error
            for file in files
            for error in refusals(url(server, options=f"?sslmode=verify-full&sslrootcert={file}"))
        ]


def by_proxy(break_it: Callable[[FaultProxy], object]) -> Provoked:
    """Connect to the server by way of a network that fails."""

    def provoke(request: pytest.FixtureRequest) -> Sequence[StoreUnavailable]:
        server: PostgresServer = request.getfixturevalue("server")
        with FaultProxy(server.port) as proxy:
            break_it(proxy)
            return refusals(f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres", within=0.5)

    return provoke


SCRAM = "host all all 127.0.0.1/32 scram-sha-256"


def silent_dns(request: pytest.FixtureRequest) -> Sequence[StoreUnavailable]:
    """With asyncio: a thread waits for the resolver of the system, which has time limits of its own."""

    async def resolve(*_: object, **__: object) -> NoReturn:
        await asyncio.sleep(60)
        raise AssertionError("it was not cancelled")

    async def body() -> StoreUnavailable:
        asyncio.get_running_loop().getaddrinfo = resolve  # type: ignore[method-assign]
        async with AsyncClient.from_url("postgresql://postgres@pg.test/postgres", response_timeout=0.2) as client:
            with pytest.raises(StoreUnavailable) as error:
                await client.lock("x").acquire(timeout=0.2)
            return error.value

    return [asyncio.run(body())]


PROVOKED: dict[str, Provoked] = {
    "the DNS did not answer": silent_dns,
    "password authentication failed": at("app:wrong", mode=SCRAM),
    "authentication failed for user": at("app", mode="host all all 127.0.0.1/32 ident"),  # nobody answers that
    "no password supplied": at("app", mode=SCRAM),
    "no pg_hba.conf entry": at("app", mode="host all somebody 127.0.0.1/32 trust"),
    "pg_hba.conf rejects": at("app", mode="host all all 127.0.0.1/32 reject"),
    "is not permitted to log in": at("locked_out"),
    'role ".*" does not exist': at("stranger"),
    'database ".*" does not exist': dropped,
    "permission denied for database": at("app", "private"),
    "not currently accepting connections": at("app", "shut"),
    "too many clients": full("postgres"),
    "remaining connection slots": full("app"),
    "too many connections for": lambda request: [*at("few")(request), *at("app", "limited")(request)],
    "out of shared memory": out_of_locks,
    "is starting up": starting,
    "is shutting down": shutting_down,
    "in recovery mode": crashed,
    "not (yet )?accepting connections": replaying,
    "onnection refused": nobody_listens,
    "No such file": lambda request: refusals("postgresql:///postgres?user=postgres&host=/nowhere"),
    "ermission denied": closed_folder,
    "could not translate host name": lambda request: refusals("postgresql://postgres@nowhere.invalid/postgres"),
    "does not support SSL": at(options="?sslmode=require"),
    "certificate": strangers_certificate,
    "read-only": lambda request: [
        *at(fixture="standby")(request),
        *at(fixture="standby", options="?target_session_attrs=read-write")(request),
    ],
    "hot standby mode": at(fixture="standby", options="?target_session_attrs=primary"),
    "closed the connection": by_proxy(lambda proxy: proxy.cut_at(0, where=b"user")),
    "imed out": by_proxy(FaultProxy.blackhole),
}

LASTING = frozenset(
    {
        *("password authentication failed", "no password supplied", "no pg_hba.conf entry", "pg_hba.conf rejects"),
        *("is not permitted to log in", 'role ".*" does not exist', 'database ".*" does not exist'),
        "permission denied for database",
    }
)
"""Those that a waiting client raises at once; after the others it retries."""


def test_every_hint_is_provoked() -> None:
    assert PROVOKED.keys() == HINTS.keys()


@pytest.mark.usefixtures("server", "standby")
@pytest.mark.parametrize("words", HINTS)
def test_it_is_not_applied_and_says_what_to_do(words: str, request: pytest.FixtureRequest) -> None:
    said = PROVOKED[words](request)
    assert said
    for error in said:
        assert re.search(words, str(error))
        assert str(error).endswith(HINTS[words].remedy), error
        assert not error.unknown
        assert error.lasting is (words in LASTING)
        assert (error.code if isinstance(error, Refused) else "") == HINTS[words].code
        assert "wrong;" not in str(error)
        assert "right" not in str(error).replace("rights", "")


def test_of_several_hosts_one_that_may_come_back_keeps_it_from_being_lasting(server: PostgresServer) -> None:
    there, elsewhere = f"127.0.0.1:{server.port}", f"127.0.0.1:{free_port()}"
    for hosts, lasting in ((f"{there},{elsewhere}", True), (f"{elsewhere},{there}", False)):  # libpq ends at a refusal
        for error in refusals(f"postgresql://stranger@{hosts}/postgres"):
            assert isinstance(error, Refused)
            assert "there is no such user" in str(error)
            assert error.lasting is lasting, error
