"""What people read when a URL or a constructor is mistaken, or nothing listens at the address."""

from __future__ import annotations

import re

import pytest

from leasehold import AsyncClient, Client, StoreUnavailable
from leasehold.stores import registry
from leasehold.stores._common.answers import with_remedy
from leasehold.stores.mysql.connection.handshake import cannot_connect
from leasehold.stores.redis.connection import settings
from leasehold_lab.servers.base import free_port

COMMON = "db, fsync, longest_lease, replicas, "
TLS = "ssl_ca_certs, ssl_ca_path, ssl_certfile, ssl_check_hostname, ssl_keyfile, "

OPTIONS = {
    "redis://h": COMMON + "strict",
    "unix:///s": COMMON + "strict",
    "valkeys://h": COMMON + TLS + "strict",
    "redis+sentinel://h/m": COMMON + "sentinel_password, sentinel_username, strict",
    "redis+cluster://h": COMMON.removeprefix("db, ") + "strict",
    "redlock://a,b,c": "db, quarantine",
    "redlocks://a,b,c": "db, quarantine, " + TLS.removesuffix(", "),
    "etcd://h": "locks",
    "etcds://h": "locks, ssl_ca_certs, ssl_certfile, ssl_check_hostname, ssl_keyfile",
    "zookeeper://h": "acl, auth, principal, service, session_timeout",
    "hazelcast://h": "group",
    "hazelcasts://h": "group, ssl_ca_certs, ssl_certfile, ssl_check_hostname, ssl_keyfile",
    "sqlite:/locks.db": "allow_network",
}


@pytest.mark.parametrize("url", OPTIONS)
def test_an_unknown_option_lists_all_that_work_for_the_scheme(url: str) -> None:
    with pytest.raises(ValueError, match="unknown option 'nosuch'") as refused:
        registry.opener(f"{url}?nosuch=1")
    assert str(refused.value).endswith(f"known are: {OPTIONS[url]}")


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("redis://h?stict=true&longest_lease=30", "strict"),
        ("rediss+cluster://h?longest_leese=30", "longest_lease"),
        ("redis+sentinel://h/m?sentinel_pasword=x", "sentinel_password"),
        ("postgresql://h/d?sslmod=require", "sslmode"),
        ("mysql://u@h/d?mod=session", "mode"),
        ("etcds://h?ssl_ca_cert=x", "ssl_ca_certs"),
    ],
)
def test_a_misspelled_option_names_the_nearest_one(url: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"did you mean '{meant}'\\? known are: "):
        registry.opener(url)


@pytest.mark.parametrize(
    ("scheme", "secure"),
    [
        ("redis", "rediss"),
        ("valkey+cluster", "valkeys+cluster"),
        ("redlock", "redlocks"),
        ("etcd", "etcds"),
        ("zookeeper", "zookeepers"),
        ("hazelcast", "hazelcasts"),
    ],
)
def test_an_option_of_tls_names_the_scheme_with_tls(scheme: str, secure: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"the {scheme} URL has no TLS; write {secure}://")):
        registry.opener(f"{scheme}://a,b,c?ssl_ca_certs=/ca.pem")


@pytest.mark.parametrize("client", [Client, AsyncClient])
@pytest.mark.parametrize(("given", "kind"), [("redis://:canary@h", "str"), (object(), "object")])
def test_a_client_made_from_a_url_names_from_url(
    client: type[Client] | type[AsyncClient], given: object, kind: str
) -> None:
    name = client.__name__
    with pytest.raises(TypeError, match=rf"^{name} takes an opener, not a {kind}; write {name}.from_url") as refused:
        client(given)  # type: ignore[arg-type]
    assert "canary" not in str(refused.value)


# --- punctuation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["", ".", ". ", ";", ":", " ..."])
def test_a_remedy_follows_one_semicolon(end: str) -> None:
    assert with_remedy(f"Connection refused{end}", "check it") == "Connection refused; check it"


@pytest.mark.parametrize(
    "url",
    [
        "redis://{}",
        "redis+cluster://{}",
        "redis+sentinel://{}/m",
        "etcd://{}",
        "mysql://u@{}/d",
        "postgresql://u@{}/d",
        "zookeeper://{}",
    ],
)
def test_where_nothing_listens_the_message_has_no_doubled_punctuation(url: str) -> None:
    with (
        Client.from_url(url.format(f"127.0.0.1:{free_port()}"), response_timeout=1.0) as client,
        pytest.raises(StoreUnavailable) as refused,
    ):
        client.inspect("x")
    assert not re.search(r"[.,:;]\s*;", str(refused.value))
    assert "listens there" in str(refused.value)


# --- passwords -------------------------------------------------------------------------------------------------------


def test_redis_without_its_password_is_told_so_in_few_words() -> None:
    for text in ("Authentication required.", "HELLO must be called with the client already authenticated, otherwise"):
        error = settings.connect_error(Exception(text), "h:6379")
        assert str(error) == (
            "cannot connect to Redis at h:6379: it wants a password (NOAUTH); "
            "put the password into the URL: redis://:password@host"
        )


def test_mysql_tells_a_missing_password_from_a_wrong_one() -> None:
    for said, remedy in (("NO", "put the password into the URL"), ("YES", "the user name or password in the URL is")):
        error = cannot_connect(OSError(1045, f"Access denied for user 'app'@'h' (using password: {said})"), "h:3306/d")
        assert f"(1045); {remedy}" in str(error)
