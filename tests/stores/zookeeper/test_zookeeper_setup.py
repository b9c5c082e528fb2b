"""Connecting to ZooKeeper: URLs, rights on nodes, TLS and SASL, and the errors without a session."""

from __future__ import annotations

import gc
import logging
import time
import traceback
from collections.abc import Iterator

import pytest
from kazoo.security import make_digest_acl

from leasehold import AsyncClient, Client
from leasehold._model import Severity
from leasehold._url import parse
from leasehold.errors import StoreUnavailable, Unsupported
from leasehold.stores import registry
from leasehold.stores._common import drivers
from leasehold.stores.zookeeper import from_url
from leasehold.stores.zookeeper.connection import errors as transport_errors
from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.servers import ZooKeeperServer
from leasehold_lab.servers.base import free_port
from support.programs.zookeeper_client import children

SECRET = "s3cr3t-canary"

JAAS = f'Server {{ org.apache.zookeeper.server.auth.DigestLoginModule required user_bob="{SECRET}"; }};'


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("zookeeper://h?nosuch=1", "unknown option 'nosuch'"),
        ("zookeeper://h?session_timeout=soon", "session_timeout"),
        ("zookeeper://h?session_timeout=0", "session_timeout"),
        ("zookeeper://h?session_timeout=nan", "session_timeout"),
        ("zookeeper://h?acl=all", "acl"),
        ("zookeeper://h?acl=creator", "credentials"),
        ("zookeeper://h?auth=plain", "auth"),
        ("zookeeper://h?auth=sasl", "credentials"),
        ("zookeeper://h?service=zk", "gssapi"),
        ("zookeeper://bob@h", "without a password"),
        ("zookeeper://:pw@h", "without a password"),
        ("zookeeper://b%3Ab:pw@h", "colon"),
        ("zookeeper://h?ssl_ca_certs=x", "zookeepers://"),
        ("zookeepers://h?ssl_certfile=x", "go together"),
        ("zookeepers://h?ssl_check_hostname=no", "true or false"),
        ("zookeeper:host", "two slashes"),
        ("zookeeper://h/a/../b", "'..'"),
        ("zookeeper://h/zookeeper/x", "belongs to the server"),
    ],
)
def test_the_error_for_an_unusable_url_gives_the_reason(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        registry.opener(url)


def test_a_url_names_hosts_ports_and_path() -> None:
    opener = from_url(parse("zookeeper://a,b:2182,[::1]:2183/locks/shop?session_timeout=12"))
    assert opener.chroot == "/locks/shop"
    assert opener.settings.where == "a:2181,b:2182,[::1]:2183"
    assert opener.settings.session_timeout == 12
    assert from_url(parse("zookeepers://a")).settings.where == "a:2281"
    assert SECRET not in repr(from_url(parse(f"zookeeper://bob:{SECRET}@h?auth=sasl")))


def test_a_port_without_a_server() -> None:
    with Client.from_url(f"zookeeper://127.0.0.1:{free_port()}", response_timeout=0.5) as locks:
        start = time.monotonic()
        with pytest.raises(StoreUnavailable, match=r"onnection refused.*nobody listens there"):
            locks.lock("a").acquire(timeout=0.5)
        assert time.monotonic() - start < 3


def test_a_server_that_never_answers(zookeeper_server: ZooKeeperServer) -> None:
    with FaultProxy(zookeeper_server.port) as proxy:
        proxy.blackhole()
        with Client.from_url(f"zookeeper://127.0.0.1:{proxy.port}", response_timeout=0.5) as locks:
            with pytest.raises(StoreUnavailable, match="no session with ZooKeeper"):
                locks.lock("a").acquire(timeout=0.5)
            proxy.heal()


def test_the_first_of_several_hosts_is_down(zookeeper_server: ZooKeeperServer, namespace: str) -> None:
    hosts = f"127.0.0.1:{free_port()},{zookeeper_server.address},127.0.0.1:{free_port()}"
    with Client.from_url(f"zookeeper://{hosts}", namespace=namespace) as locks, locks.lock("a"):
        pass


# --- credentials and rights ----------------------------------------------------------------------------------------


def test_only_the_creators_credentials_may_use_the_nodes(zookeeper_server: ZooKeeperServer, namespace: str) -> None:
    """Another user, or none, is refused at once with the remedy; the same user with another client is not."""
    mine = f"zookeeper://bob:{SECRET}@{zookeeper_server.address}/auth-{namespace}"
    with Client.from_url(mine) as locks, Client.from_url(mine) as same:
        hold = locks.lock("a").acquire()
        assert hold is not None
        assert same.lock("a").acquire(blocking=False) is None
        for url in (mine.replace("bob", "eve"), mine.replace(f"bob:{SECRET}@", "")):
            with Client.from_url(url) as foreign:
                start = time.monotonic()
                with pytest.raises(StoreUnavailable, match="rights of a node") as caught:
                    foreign.lock("a").acquire(timeout=10)
                assert time.monotonic() - start < 5, "it is not asked again and again"
                assert SECRET not in "".join(traceback.format_exception(caught.value))
        assert locks.force_release("a", hold.token)


def test_creator_and_read_lets_others_read(zookeeper_server: ZooKeeperServer, namespace: str) -> None:
    root = f"{zookeeper_server.address}/auth-{namespace}"
    with (
        Client.from_url(f"zookeeper://bob:{SECRET}@{root}?acl=creator%2Bread") as locks,
        Client.from_url(f"zookeeper://{root}") as foreign,
        locks.lock("a") as hold,
    ):
        info = foreign.inspect("a")
        assert info is not None
        assert info.token == hold.token
        with pytest.raises(StoreUnavailable, match="rights of a node"):
            foreign.force_release("a", hold.token)


def test_a_user_needs_rights_on_one_path_only(zookeeper_server: ZooKeeperServer, namespace: str) -> None:
    """The parent of that path is closed to it."""
    closed, bob = make_digest_acl("admin", "x", all=True), make_digest_acl("bob", SECRET, all=True)
    with zookeeper_server.connect(auth_data=[("digest", "admin:x")]) as operator:
        operator.create(f"/closed-{namespace}", b"", acl=[closed])
        operator.create(f"/closed-{namespace}/bob", b"", acl=[bob])
    url = f"zookeeper://bob:{SECRET}@{zookeeper_server.address}/closed-{namespace}"
    with Client.from_url(f"{url}/bob") as locks, locks.lock("a"), locks.semaphore("s", 2).permits(2):
        locks.versioned("v").put(1)
    with Client.from_url(url) as locks:
        with pytest.raises(StoreUnavailable, match="rights of a node"):
            locks.lock("a").acquire(timeout=5)
        findings = {finding.subject: finding for finding in locks.diagnose()}
        assert findings["rights"].severity is Severity.ERROR


def test_rights_on_the_path_alone_suffice_for_locks_without_a_namespace(
    zookeeper_server: ZooKeeperServer, namespace: str
) -> None:
    """Cells are beside the path, since children of it would be locks to Spring."""
    closed, bob = make_digest_acl("admin", "x", all=True), make_digest_acl("bob", SECRET, all=True)
    with zookeeper_server.connect(auth_data=[("digest", "admin:x")]) as operator:
        operator.create(f"/beside-{namespace}", b"", acl=[closed])
        operator.create(f"/beside-{namespace}/bob", b"", acl=[bob])
    url = f"zookeeper://bob:{SECRET}@{zookeeper_server.address}/beside-{namespace}/bob?namespace="
    with Client.from_url(url) as locks, locks.lock("a"):
        findings = {finding.subject: finding for finding in locks.diagnose()}
        assert findings["rights"].severity is Severity.OK
        assert findings["cells"].severity is Severity.WARNING
        assert "parent" in findings["cells"].remedy
        assert [info.name for info in locks.holds()] == ["a"]
        with pytest.raises(StoreUnavailable, match="rights of a node"):
            locks.versioned("v").put(1)


@pytest.fixture(scope="module")
def guarded() -> Iterator[ZooKeeperServer]:
    provider = {"zookeeper.authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"}
    with ZooKeeperServer(jaas=JAAS, properties=provider, tls=True) as server:
        yield server


@pytest.mark.leaks("its server lasts for the module")
def test_sasl(guarded: ZooKeeperServer, namespace: str) -> None:
    pytest.importorskip("puresasl")
    url = f"zookeeper://bob:{SECRET}@{guarded.address}/{namespace}?auth=sasl"
    with Client.from_url(url) as locks, locks.lock("a"):
        with guarded.connect() as stranger:
            acl, _ = stranger.get_acls("/zookeeper")
        assert children_refused(guarded, f"/{namespace}/default/a")
        assert acl
    with Client.from_url(url.replace(SECRET, "wrong"), response_timeout=2) as locks:
        with pytest.raises(StoreUnavailable, match="credentials were refused") as caught:
            locks.lock("a").acquire(timeout=2)
        assert "wrong" not in "".join(traceback.format_exception(caught.value))


def children_refused(server: ZooKeeperServer, path: str) -> bool:
    try:
        children(server, path)
    except Exception as error:
        return type(error).__name__ == "NoAuthError"
    return False


@pytest.mark.leaks("its server lasts for the module")
def test_tls(guarded: ZooKeeperServer, namespace: str) -> None:
    files = guarded.certificates
    assert files is not None
    url = f"zookeepers://127.0.0.1:{guarded.secure_port}/{namespace}"
    with Client.from_url(f"{url}?ssl_ca_certs={files.authority}") as locks, locks.lock("a") as hold:
        hold.raise_if_lost()
    with Client.from_url(url, response_timeout=1) as locks, pytest.raises(StoreUnavailable, match="ssl_ca_certs"):
        locks.lock("a").acquire(timeout=1)
    plain = Client.from_url(url.replace("zookeepers", "zookeeper"), response_timeout=1)
    with plain as locks, pytest.raises(StoreUnavailable, match="no session"):
        locks.lock("a").acquire(timeout=1)


@pytest.mark.leaks("its server lasts for the module")
def test_a_certificate_for_another_host_is_refused(guarded: ZooKeeperServer) -> None:
    files = guarded.certificates
    assert files is not None
    url = f"zookeepers://127.1:{guarded.secure_port}?ssl_ca_certs={files.authority}"
    guarded_only = Client.from_url(url, response_timeout=1)
    with guarded_only as locks, pytest.raises(StoreUnavailable, match="another host name"):
        locks.lock("a").acquire(timeout=1)


# --- errors --------------------------------------------------------------------------------------------------------


def test_every_listed_error_exists_in_kazoo_and_raises_its_class() -> None:
    import kazoo.exceptions

    for name in (*transport_errors.MEANINGS, *transport_errors.ANSWERS):
        error = getattr(kazoo.exceptions, name)()
        to_error = transport_errors.to_error(error, "host:2181")
        if name in transport_errors.ANSWERS:
            assert isinstance(to_error, transport_errors.ANSWERS[name])
            continue
        kind, _ = transport_errors.MEANINGS[name]
        if kind is drivers.UNSUPPORTED:
            assert isinstance(to_error, Unsupported)
        else:
            assert isinstance(to_error, StoreUnavailable)
            assert to_error.unknown is (kind is drivers.UNKNOWN)
            assert to_error.lasting is (kind is drivers.LASTING)
    unlisted = transport_errors.to_error(RuntimeError("?"), "host:2181")
    assert isinstance(unlisted, StoreUnavailable)
    assert unlisted.unknown


def test_no_log_and_no_error_has_a_password(
    zookeeper_server: ZooKeeperServer, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Even at the lowest level, where the driver would log each request, credentials included."""
    caplog.set_level(1)
    logging.getLogger("kazoo").setLevel(1)
    try:
        url = f"zookeeper://bob:{SECRET}@{zookeeper_server.address}/auth-{namespace}"
        client = Client.from_url(url)
        with client as locks, locks.lock("a"):
            assert SECRET not in repr(locks)
            assert SECRET not in repr(locks.store)
            assert SECRET not in repr(vars(locks.store))
        assert SECRET not in caplog.text
    finally:
        logging.getLogger("kazoo").setLevel(logging.NOTSET)
    gc.collect()


def test_the_doctor_of_a_server_alone(zookeeper_server: ZooKeeperServer, namespace: str) -> None:
    with Client.from_url(f"{zookeeper_server.url}/{namespace}?session_timeout=500") as locks:
        findings = {finding.subject: finding for finding in locks.diagnose()}
    assert findings["version"].found.startswith("3.")
    assert findings["ensemble"].severity is Severity.WARNING
    assert findings["session timeout"].found == "120 s"
    assert "500 s were requested" in findings["session timeout"].meaning
    assert findings["tick"].found == "500 ms"
    assert findings["rights"].severity is Severity.OK
    with Client.from_url(f"{zookeeper_server.url}/{namespace}?session_timeout=2") as locks:
        findings = {finding.subject: finding for finding in locks.diagnose()}
    assert findings["tick"].severity is Severity.WARNING


def test_the_doctor_of_a_server_that_reports_nothing(namespace: str) -> None:
    with ZooKeeperServer(config={"4lw.commands.whitelist": "srvr"}) as server, Client.from_url(server.url) as locks:
        findings = {finding.subject: finding for finding in locks.diagnose()}
    assert "whitelist" in findings["tick"].remedy
    assert findings["tick"].severity is Severity.NOTE


def test_the_async_client_reports_the_same(zookeeper_server: ZooKeeperServer, namespace: str) -> None:
    import asyncio

    async def main() -> None:
        async with AsyncClient.from_url(f"{zookeeper_server.url}/{namespace}") as locks:
            assert any(finding.subject == "version" for finding in await locks.diagnose())
        async with AsyncClient.from_url(f"zookeeper://127.0.0.1:{free_port()}", response_timeout=0.3) as locks:
            with pytest.raises(StoreUnavailable, match="onnection refused"):
                await locks.lock("a").acquire(timeout=0.3)

    asyncio.run(main())
