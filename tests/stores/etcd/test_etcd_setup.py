"""Connecting to etcd: URLs, TLS, users and their rights, tokens that expire; no output contains a password."""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from pathlib import Path

import pytest

from leasehold import AsyncClient, Client, StoreUnavailable
from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.servers import EtcdError, EtcdServer

CANARY = "Zc4naryZ"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("etcd:localhost", "two slashes"),
        ("etcd://user@h", "no password"),
        ("etcd://:secret@h", "no user"),
        ("etcd://h?ssl_ca_certs=x", "etcds://"),
        ("etcds://h?ssl_ca_certs=/nowhere/x.pem", "cannot be read"),
        ("etcds://h?ssl_keyfile=/x", "ssl_certfile"),
        ("etcds://h?ssl_check_hostname=no", "true or false"),
        ("etcd://h?nothing=1", "unknown option"),
        ("etcd://h?locks=", "empty"),
        ("etcd://h?locks=/jobs", "write locks=/jobs/"),
        ("etcd://h:0", "port"),
    ],
)
def test_the_error_for_a_wrong_url_names_the_mistake(url, words):
    with pytest.raises(ValueError, match=words) as failed:
        Client.from_url(url)
    assert "secret" not in str(failed.value)


def test_several_members_and_ipv6():
    with Client.from_url("etcd://h1,h2:4,[::1]:5,bücher.example/root") as locks:
        assert "h1:2379,h2:4,[::1]:5,xn--bcher-kva.example:2379" in repr(locks.store)


# --- TLS ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tls_server():
    with EtcdServer(tls=True, client_certificates=True) as server:
        yield server


def with_files(server, *, client: bool = True) -> str:
    files = server.certificates
    options = f"ssl_ca_certs={files.authority}"
    if client:
        options += f"&ssl_certfile={files.client}&ssl_keyfile={files.client_key}"
    return f"{server.url}?{options}"


@pytest.mark.leaks(why="the module's server")
def test_tls_with_a_client_certificate(tls_server, namespace):
    with Client.from_url(with_files(tls_server), namespace=namespace) as locks:
        hold = locks.lock("x").acquire()
        thread = threading.Thread(target=lambda: locks.lock("x").acquire().release())
        thread.start()
        time.sleep(0.3)
        hold.release()
        thread.join()

    async def body():
        async with AsyncClient.from_url(with_files(tls_server), namespace=namespace) as locks:
            hold = await locks.lock("x").acquire()
            waiter = asyncio.ensure_future(locks.lock("x").acquire())
            await asyncio.sleep(0.3)
            await hold.release()
            await (await waiter).release()

    asyncio.run(body())


@pytest.mark.leaks(why="the module's server")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda url, server: with_files(server, client=False), "client certificate"),
        (lambda url, server: server.url, "ssl_ca_certs"),
        (lambda url, server: url.replace("127.0.0.1", "127.1"), "another host name"),  # the same address, by a name
        (lambda url, server: url.replace("etcds://127.0.0.1", "etcd://127.0.0.1").partition("?")[0], "etcds://"),
    ],
    ids=["no client certificate", "unknown authority", "another host", "in clear"],
)
def test_a_tls_mismatch_names_the_remedy(tls_server, namespace, change, words):
    url = change(with_files(tls_server), tls_server)
    with Client.from_url(url, namespace=namespace, response_timeout=2.0) as locks:
        lock = locks.lock("x")
        with pytest.raises(StoreUnavailable, match=words):
            lock.acquire(timeout=1)

    async def body():
        async with AsyncClient.from_url(url, namespace=namespace, response_timeout=2.0) as locks:
            with pytest.raises(StoreUnavailable, match=words):
                await locks.lock("x").acquire(timeout=1)

    asyncio.run(body())


def test_tls_to_a_server_without_tls(etcd_server, namespace):
    url = etcd_server.url.replace("etcd://", "etcds://")
    with Client.from_url(url, namespace=namespace) as locks, pytest.raises(StoreUnavailable, match="etcd://"):
        locks.lock("x").acquire(timeout=1)


# --- users -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded_server():
    with EtcdServer(config={"auth-token-ttl": "2", "bcrypt-cost": "4"}) as server:
        for command in documented():
            server.ctl(*command)
        server.enable_auth(CANARY, {"other": ["elsewhere/"]}, {"stranger": (CANARY, "other")})
        yield server


def documented() -> list[list[str]]:
    """Return the commands that the page gives for a user's rights."""
    text = (Path(__file__).parents[3] / "docs/backends/etcd.md").read_text()
    block = text.partition("## Permissions")[2].partition("```text\n")[2].partition("```")[0]
    commands = [line.replace("secret", CANARY).split() for line in block.splitlines()]
    assert [command[0] for command in commands] == ["etcdctl"] * 4
    return [command[1:] for command in commands]


def as_user(server, user="app", password=CANARY) -> str:
    return server.url.replace("://", f"://{user}:{password}@")


@pytest.mark.leaks(why="the module's server")
def test_a_role_for_one_prefix_is_enough_for_everything(guarded_server):
    with Client.from_url(as_user(guarded_server), namespace="app") as locks:
        hold = locks.lock("x", lease=2.0).acquire()
        got = []
        thread = threading.Thread(target=lambda: got.append(locks.lock("x", lease=2.0).acquire()))
        thread.start()
        while len(locks.inspect("x").waiters) < 1:
            time.sleep(0.01)
        hold.release()
        thread.join()
        assert [info.name for info in locks.holds()] == ["x"]
        assert locks.force_release("x", got[0].token)
        with locks.rw_lock("rw").reader(), locks.semaphore("s", 2).permits(1), locks.lock("f", renew=False):
            pass
        assert locks.versioned("v").put("value") == 1
        assert locks.versioned("v").get().value == "value"
        assert locks.diagnose()


@pytest.mark.leaks(why="the module's server")
@pytest.mark.parametrize(
    ("user", "password", "words"),
    [
        ("stranger", CANARY, "permission denied"),
        ("app", f"{CANARY}wrong", "user name or password"),
        ("nobody", CANARY, "user name or password"),
        (None, None, "put user and password into the URL"),
    ],
    ids=["no right", "wrong password", "no such user", "nobody"],
)
def test_a_user_without_rights_gets_a_lasting_error_at_once(guarded_server, user, password, words):
    url = guarded_server.url if user is None else as_user(guarded_server, user, password)
    with Client.from_url(url, namespace="app") as locks:
        start = time.monotonic()
        with pytest.raises(StoreUnavailable, match=words) as failed:
            locks.lock("x").acquire()
        assert failed.value.lasting
        assert not failed.value.unknown
        assert time.monotonic() - start < 2.0
        shown = "".join(traceback.format_exception(failed.value)) + repr(locks.store) + repr(vars(failed.value))
        frames = traceback.TracebackException.from_exception(failed.value, capture_locals=True)
        ours = [str(frame.locals) for frame in frames.stack if "/leasehold/" in frame.filename]
        assert len(ours) > 3
        assert CANARY not in shown + "".join(ours)


def test_a_user_at_a_server_without_users(etcd_server):
    with (
        Client.from_url(as_user(etcd_server)) as locks,
        pytest.raises(StoreUnavailable, match="knows no users") as error,
    ):
        locks.lock("x").acquire()
    assert error.value.lasting


@pytest.mark.leaks(why="the module's server")
@pytest.mark.parametrize("flavor", ["blocking", "asyncio"])
def test_a_token_that_expires_during_a_hold_is_refreshed(guarded_server, flavor):
    """The server forgets it two seconds after its last use; the next renewal comes later than that."""
    if flavor == "blocking":
        with Client.from_url(as_user(guarded_server), namespace="app") as locks, locks.lock("x", lease=10.0) as hold:
            time.sleep(7.5)  # two renewals, each with a token that has expired
            hold.raise_if_lost()
            assert hold.remaining > 5.0
        return

    async def body():
        url = as_user(guarded_server)
        async with AsyncClient.from_url(url, namespace="app") as locks, locks.lock("x", lease=10.0) as hold:
            await asyncio.sleep(7.5)
            hold.raise_if_lost()
            assert hold.remaining > 5.0

    asyncio.run(body())


@pytest.mark.leaks(why="the module's server")
def test_a_waiter_whose_right_is_revoked_raises(guarded_server):
    with Client.from_url(as_user(guarded_server), namespace="app") as locks:
        hold = locks.lock("y", lease=3.0).acquire()
        failed = []

        def wait():
            try:
                locks.lock("y", lease=3.0).acquire(timeout=30)
            except StoreUnavailable as error:
                failed.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        while len(locks.inspect("y").waiters) < 1:
            time.sleep(0.01)
        guarded_server.ctl("user", "revoke-role", "app", "leasehold-app")
        try:
            (key, *_) = [key for key in root_keys(guarded_server) if "/lock/y/" in key]
            guarded_server.ctl("del", key)
            thread.join(20)
            assert failed
            assert "permission denied" in str(failed[0])
        finally:
            guarded_server.ctl("user", "grant-role", "app", "leasehold-app")
        hold._core._lease.begin_release()


def root_keys(server: EtcdServer) -> list[str]:
    return server.ctl("get", "--prefix", "--keys-only", "leasehold/").split()


@pytest.mark.leaks(why="the module's server")
def test_the_server_accepts_only_users(guarded_server):
    with pytest.raises(EtcdError):
        guarded_server.ask("/v3/kv/range", {"key": "YQ=="})


# --- secrets -----------------------------------------------------------------------------------------------------


@pytest.mark.leaks(why="the module's server")
@pytest.mark.parametrize("fault", ["none", "down", "refused", "cut"])
def test_neither_password_nor_token_is_ever_shown(guarded_server, caplog, fault):
    """In logs at DEBUG, messages, reprs, and the local variables of our frames, whatever goes wrong."""
    caplog.set_level("DEBUG")
    shown = list[str]()
    with FaultProxy(guarded_server.port) as proxy:
        password = f"{CANARY}wrong" if fault == "refused" else CANARY
        url = f"etcd://app:{password}@127.0.0.1:{proxy.port}"
        with Client.from_url(url, namespace="app", response_timeout=0.5) as locks:
            secrets = [CANARY]
            if fault == "cut":
                with locks.lock("x"):
                    secrets.append(locks.store._gateway._token.reveal())
            if fault == "down":
                proxy.stop()
            elif fault == "cut":
                proxy.cut_at(0)
            try:
                with locks.lock("x", timeout=0.2):
                    shown.append(repr(vars(locks.store._gateway)))
            except StoreUnavailable as error:
                frames = traceback.TracebackException.from_exception(error, capture_locals=True)
                shown += [str(frame.locals) for frame in frames.stack if "/leasehold/" in frame.filename]
                shown += ["".join(traceback.format_exception(error)), repr(vars(error))]
            shown += [repr(locks), repr(locks.store), repr(locks.store._settings), repr(vars(locks.store))]
    assert (len(shown) > 8) is (fault != "none")
    assert all(len(secret) > 5 for secret in secrets)
    assert [text for text in [*shown, caplog.text] for secret in secrets if secret in text] == []
