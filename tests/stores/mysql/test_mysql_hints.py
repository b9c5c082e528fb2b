"""Every way in which a connection to MySQL or MariaDB fails without a number of the server's, and what people are told.

Two need a DNS that fails, which no test can have: there the resolver says so in its place.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest
import sqlalchemy

from leasehold import Client, StoreUnavailable
from leasehold.stores._sql.transport import Refused
from leasehold.stores.mysql.connection.handshake import HINTS
from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.servers import MariaDBServer
from leasehold_lab.servers.base import free_port
from support.stores.refusals import closed, refusals

USERS = """
CREATE USER pam@'127.0.0.1' IDENTIFIED VIA pam
GRANT ALL ON locks.* TO pam@'127.0.0.1'
CREATE USER modern@'127.0.0.1' IDENTIFIED VIA ed25519 USING PASSWORD('x')
GRANT ALL ON locks.* TO modern@'127.0.0.1'
"""

Provoked = Callable[[pytest.FixtureRequest], Sequence[StoreUnavailable]]


@pytest.fixture(scope="module")
def server(outlive: set[int]) -> Iterator[MariaDBServer]:
    with MariaDBServer(config={"plugin-load-add": "auth_pam;auth_ed25519"}) as running:
        outlive.add(running.pid)
        for statement in USERS.strip().splitlines():
            running.query(statement)
        yield running


@pytest.fixture(scope="module")
def encrypted(outlive: set[int]) -> Iterator[MariaDBServer]:
    with MariaDBServer(tls=True) as running:
        outlive.add(running.pid)
        yield running


# --- how each is provoked ----------------------------------------------------------------------------------------


def at(place: str) -> Provoked:
    return lambda request: refusals(f"mysql://app@{place}")


def nobody_listens(request: pytest.FixtureRequest) -> Sequence[StoreUnavailable]:
    return refusals(f"mysql://app@127.0.0.1:{free_port()}/locks")


def closed_folder(request: pytest.FixtureRequest) -> Sequence[StoreUnavailable]:
    with closed(request.getfixturevalue("tmp_path")) as folder:
        return refusals(f"mysql://app@/locks?unix_socket={folder}/socket")


def another_authority(request: pytest.FixtureRequest) -> Sequence[StoreUnavailable]:
    server: MariaDBServer = request.getfixturevalue("encrypted")
    return refusals(f"{server.url}?ssl=true")


def another_host(request: pytest.FixtureRequest) -> Sequence[StoreUnavailable]:
    """The same address, by a name for which the certificate is not."""
    server: MariaDBServer = request.getfixturevalue("encrypted")
    assert server.certificates is not None
    return refusals(f"mysql://app@127.1:{server.port}/locks?ssl_ca={server.certificates.authority}")


def no_tls(request: pytest.FixtureRequest) -> Sequence[StoreUnavailable]:
    """The one driver asks first whether it does; the other begins."""
    server: MariaDBServer = request.getfixturevalue("server")
    return refusals(f"{server.url}?ssl=true")


def resolver(error: int) -> Provoked:
    def provoke(request: pytest.FixtureRequest) -> Sequence[StoreUnavailable]:
        def fails(*_: object, **__: object) -> None:
            raise socket.gaierror(error, WORDS[error])

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(socket, "getaddrinfo", fails)
            return refusals("mysql://app@database.example/locks")

    return provoke


WORDS = {
    socket.EAI_NODATA: "No address associated with hostname",
    socket.EAI_AGAIN: "Temporary failure in name resolution",
}


def without(module: str, user: str) -> Provoked:
    """Log in by a method for which the driver needs a module that is not there."""

    def provoke(request: pytest.FixtureRequest) -> Sequence[StoreUnavailable]:
        server: MariaDBServer = request.getfixturevalue("server")
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            return refusals(server.url.replace("app@", f"{user}@"))

    return provoke


def encrypted_password(request: pytest.FixtureRequest) -> Sequence[StoreUnavailable]:
    """MySQL's own method, which MariaDB does not know: by its manual, the server sends a key for the password."""
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.MonkeyPatch.context() as patch:
        patch.setattr("pymysql._auth._have_cryptography", False)
        patch.setattr("asyncmy.auth._have_cryptography", False)
        thread = threading.Thread(target=asks_for_encryption, args=(listener, 2))
        thread.start()
        said = refusals(f"mysql://app:secret@127.0.0.1:{listener.getsockname()[1]}/locks")
        thread.join()
    return said


def asks_for_encryption(listener: socket.socket, times: int) -> None:
    """Speak as a server does that wants a password encrypted by its key."""
    capabilities = (0x000FF7DF).to_bytes(4, "little")
    greeting = b"".join(
        (
            b"\x0a8.0.0\0" + bytes(4) + b"a" * 8 + b"\0" + capabilities[:2] + b"\x2d\x02\0" + capabilities[2:],
            b"\x15" + bytes(10) + b"b" * 12 + b"\0caching_sha2_password\0",
        )
    )
    for _ in range(times):
        link, _ = listener.accept()
        with link:
            for number, packet in ((0, greeting), (2, b"\x01\x04"), (4, b"\x01a key")):
                link.sendall(len(packet).to_bytes(3, "little") + bytes((number,)) + packet)
                link.recv(10_000)


def unknown_method(request: pytest.FixtureRequest) -> Sequence[StoreUnavailable]:
    """The server asks for the password of PAM, which neither driver can read."""
    server: MariaDBServer = request.getfixturevalue("server")
    return refusals(server.url.replace("app@", "pam:x@"))


def silent(request: pytest.FixtureRequest) -> Sequence[StoreUnavailable]:
    server: MariaDBServer = request.getfixturevalue("server")
    with FaultProxy(server.port) as proxy:
        proxy.blackhole()
        return refusals(server.url.replace(f":{server.port}/", f":{proxy.port}/"), within=0.5)


def hangs_up(request: pytest.FixtureRequest) -> Sequence[StoreUnavailable]:
    server: MariaDBServer = request.getfixturevalue("server")
    with FaultProxy(server.port) as proxy:
        proxy.cut_at(0)
        return refusals(server.url.replace(f":{server.port}/", f":{proxy.port}/"))


def locks_in_a_listener(request: pytest.FixtureRequest) -> Sequence[StoreUnavailable]:
    """An engine fetches a token of its cloud for each connection, and a lock keeps others from doing so, too."""
    server: MariaDBServer = request.getfixturevalue("server")
    engine = sqlalchemy.create_engine(server.url.replace("mysql:", "mysql+pymysql:"))
    with Client.from_url("memory:") as other, Client.from_client(engine) as client:
        sqlalchemy.event.listen(engine, "do_connect", lambda *_: other.lock("token").acquire())
        with pytest.raises(StoreUnavailable) as caught:
            client.lock("x").acquire(timeout=5)
    return [caught.value]


PROVOKED: dict[str, Provoked] = {
    "mismatch": another_host,
    "CERTIFICATE_VERIFY_FAILED": another_authority,
    "WRONG_VERSION_NUMBER": no_tls,
    "SSL is required": no_tls,
    "onnection refused": nobody_listens,
    "Connect call failed": nobody_listens,
    "No such file": at("/locks?unix_socket=/nowhere/socket"),
    "ermission denied": closed_folder,
    "Name or service not known": at("nowhere.invalid/locks"),
    "No address associated": resolver(socket.EAI_NODATA),
    "emporary failure in name resolution": resolver(socket.EAI_AGAIN),
    "cryptography": encrypted_password,
    "nacl": without("nacl", "modern:x"),
    "imeout": silent,
    "imed out": silent,
    "Lost connection": hangs_up,
    "index out of range": unknown_method,
    "Negative size": unknown_method,
    "called by a signal handler": locks_in_a_listener,
}


def test_every_hint_is_provoked() -> None:
    assert PROVOKED.keys() == HINTS.keys()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # PyMySQL leaves a socket to the gc
@pytest.mark.usefixtures("server", "encrypted")
@pytest.mark.parametrize("words", HINTS)
def test_it_is_not_applied_and_says_what_to_do(words: str, request: pytest.FixtureRequest) -> None:
    """The drivers of the two flavors have words of their own: one of them says these, and both the same remedy."""
    said = PROVOKED[words](request)
    assert any(words in str(error) for error in said), said
    for error in said:
        assert str(error).endswith(HINTS[words]), error
        assert not error.unknown
        assert not error.lasting
        assert not isinstance(error, Refused)
