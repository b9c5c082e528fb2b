"""Every row of ZooKeeper's table of errors, as a real server reports it, and whether the request was carried out.

Some cannot be provoked (`NOT_PROVOKED`); there kazoo's exception is passed to `to_error`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import kazoo.exceptions
import pytest
from kazoo.protocol.serialization import Create2, Delete, GetData, SetData, Transaction
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, make_digest_acl

from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold._url import parse
from leasehold.errors import LeaseholdError, StoreUnavailable, Unsupported
from leasehold.stores._common.drivers import LASTING, UNKNOWN, UNSUPPORTED, Answer
from leasehold.stores.zookeeper import from_url
from leasehold.stores.zookeeper.connection.errors import ANSWERS, MEANINGS, to_error
from leasehold.stores.zookeeper.connection.requests import EPHEMERAL, Request
from leasehold.stores.zookeeper.connection.session import Transport
from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.servers import ZooKeeperServer
from leasehold_lab.servers.base import free_port

RUNTIME = BlockingRuntime()

JAAS = 'Server { org.apache.zookeeper.server.auth.DigestLoginModule required user_bob="s3cret"; };'

Provoked = Callable[[pytest.FixtureRequest], BaseException]


@pytest.fixture(scope="module")
def server(outlive: set[int]) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(config={"enforceQuota": "true"}) as running:
        outlive.add(running.pid)
        with running.connect() as client:
            for path in ("/mark", "/full/a", "/closed", "/zookeeper/quota/full"):
                client.ensure_path(path)
            client.create(
                "/zookeeper/quota/full/zookeeper_limits", b"count=2,bytes=-1=;byteHardLimit=-1;countHardLimit=2"
            )
            client.create("/zookeeper/quota/full/zookeeper_stats", b"count=2,bytes=0")
            client.set_acls("/closed", [make_digest_acl("admin", "x", all=True)])
        yield running


@pytest.fixture(scope="module")
def guarded(outlive: set[int]) -> Iterator[ZooKeeperServer]:
    """A server that requires SASL; its sessions are local, so they cannot create ephemeral nodes."""
    port, peer = free_port(), free_port()
    properties = {
        "zookeeper.authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        "zookeeper.sessionRequireClientSASLAuth": "true",
    }
    config = {"standaloneEnabled": "false", "localSessionsEnabled": "true", "initLimit": "20", "syncLimit": "4"}
    with contextlib.ExitStack() as stack:
        running = ZooKeeperServer(jaas=JAAS, properties=properties, config=config)
        running.member = 1
        running.config["server.1"] = f"127.0.0.1:{port}:{peer}:participant;127.0.0.1:{running.port}"
        for key in ("clientPort", "clientPortAddress"):
            del running.config[key]
        stack.enter_context(running)
        outlive.add(running.pid)
        until = time.monotonic() + 15
        while running.role != "leader":
            assert time.monotonic() < until
            time.sleep(0.05)
        yield running


@contextlib.contextmanager
def transport_to(url: str) -> Iterator[Transport]:
    transport = Transport(RUNTIME, from_url(parse(url)).settings, lambda _: None)
    try:
        yield transport
    finally:
        finish(transport.close())


def first_error(url: str, *forms: Any) -> BaseException:
    """Send the requests one after another; return the error of the one that fails."""
    with transport_to(url) as transport:
        for form in forms:
            try:
                (answer,) = finish(transport.ask_all((Request(form, lambda value: value),), RUNTIME.now() + 5))
            except LeaseholdError as error:
                return error
            if isinstance(answer, Answer):
                return answer
    raise AssertionError("nothing failed")


# --- how each is provoked ----------------------------------------------------------------------------------------


def create_request(path: str, flags: int = 0, acl: Any = OPEN_ACL_UNSAFE) -> Any:
    return Create2(path, b"", acl, flags)


def error_of(*forms: Any) -> Provoked:
    return lambda request: first_error(request.getfixturevalue("server").url, *forms)


class Odd(GetData):  # type: ignore[misc]
    """A request that no server knows."""

    type = 77


class Short(GetData):  # type: ignore[misc]
    """A request that ends too soon."""

    def serialize(self) -> bytes:
        return b"\0\0"


def out_of_step(request: pytest.FixtureRequest) -> BaseException:
    """The result of the operation that follows the failed one in a transaction."""
    forms = Transaction([create_request("/mark"), create_request("/mark/a")])
    server: ZooKeeperServer = request.getfixturevalue("server")
    with transport_to(server.url) as transport, pytest.raises(LeaseholdError) as caught:
        finish(transport.ask_all((Request(forms, lambda value: value[1]),), RUNTIME.now() + 5))
    return caught.value


def cut_off(request: pytest.FixtureRequest) -> BaseException:
    """The connection breaks as the request is sent."""
    server: ZooKeeperServer = request.getfixturevalue("server")
    with FaultProxy(server.port) as proxy:
        proxy.cut_at(where=b"/mark/a")
        return first_error(f"zookeeper://127.0.0.1:{proxy.port}", create_request("/mark/a"))


def with_sasl(user: str, *forms: Any) -> Provoked:
    def provoke(request: pytest.FixtureRequest) -> BaseException:
        server: ZooKeeperServer = request.getfixturevalue("guarded")
        url = server.url if not user else f"zookeeper://{user}@{server.address}?auth=sasl"
        return first_error(url, *(forms or (GetData("/", None),)))

    return provoke


def mapped_from_kazoo(name: str) -> Provoked:
    return lambda request: to_error(getattr(kazoo.exceptions, name)(), "here")


NOT_PROVOKED = (
    "ConnectionClosedError",  # kazoo's own, of a client that is being closed
    "RequestTimeoutError",
    "SessionExpiredError",  # for a request that the server had before the session ended
    "SessionMovedError",
    "SystemZookeeperError",
    "ThrottledOpError",  # of a server with more to do than a test can give it
)

PROVOKED: dict[str, Provoked] = {
    "NoNodeError": error_of(GetData("/nothing", None)),
    "NodeExistsError": error_of(create_request("/mark")),
    "BadVersionError": error_of(SetData("/mark", b"", 7)),
    "NotEmptyError": error_of(Delete("/full", -1)),
    "ConnectionLoss": cut_off,
    "RuntimeInconsistency": out_of_step,
    "NoAuthError": error_of(create_request("/closed/a")),
    "AuthFailedError": with_sasl("bob:wr0ng"),
    "SessionClosedRequireSaslError": with_sasl(""),
    "InvalidACLError": error_of(create_request("/mark/a", acl=CREATOR_ALL_ACL)),
    "QuotaExceededError": error_of(create_request("/full/b"), create_request("/full/c")),
    "EphemeralOnLocalSessionError": with_sasl("bob:s3cret", create_request("/a", EPHEMERAL)),
    "UnimplementedError": error_of(Odd("/mark", None)),
    "MarshallingError": error_of(Short("/mark", None)),
    "BadArgumentsError": error_of(create_request("mark")),
    "NoChildrenForEphemeralsError": error_of(create_request("/brief", EPHEMERAL), create_request("/brief/a")),
    **{name: mapped_from_kazoo(name) for name in NOT_PROVOKED},
}


def test_every_row_is_provoked() -> None:
    assert PROVOKED.keys() == ANSWERS.keys() | MEANINGS.keys()


@pytest.mark.usefixtures("server", "guarded")
@pytest.mark.parametrize("name", PROVOKED)
def test_the_refused_request_changes_nothing_and_its_error_names_the_remedy(
    name: str, request: pytest.FixtureRequest
) -> None:
    error = PROVOKED[name](request)
    if name in ANSWERS:
        assert type(error) is ANSWERS[name]
    else:
        kind, words = MEANINGS[name]
        assert f"({name})" in str(error)
        assert words in str(error)
        assert isinstance(error, Unsupported) is (kind is UNSUPPORTED)
        if isinstance(error, StoreUnavailable):
            assert error.unknown is (kind is UNKNOWN)
            assert error.lasting is (kind is LASTING)
        assert "wr0ng" not in str(error)
    with request.getfixturevalue("server").connect() as client:
        assert client.get_children("/mark") == []
