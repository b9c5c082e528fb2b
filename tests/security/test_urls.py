"""Store URLs: what is read, what is refused, and that no error has a part of a password."""

from __future__ import annotations

import pickle
import traceback

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasehold import AsyncClient, Client
from leasehold._url import Secret, StoreURL, parse
from leasehold.stores.redis.connection import settings as redis_settings

MALFORMED = [
    "",
    ":",
    "//host",
    "localhost",
    "localhost:6379",  # reads as an unknown scheme
    "/var/lib/locks.db",
    "redis",
    "1redis://host",
    "re dis://host",
    "rédis://host",
    "nosuch://host",
    "redis+sentinel://host",
    "redis+cluster://",
    "redis+cluster://host/1",
    "redis+cluster://host?db=0",
    "redis+sentinel:///name",
    "redis+sentinel://host/name/x",
    "redis+sentinel://host/name?sentinel_pasword=s3cret",
    "redis+sentinel://host/name?ssl_ca_certs=/ca.pem",
    "redlock://",
    "redlock://a,b",
    "redlock://a,b,a",
    "redlock://a,b,c/name",
    "redlock://a,b,c?quarantine=soon",
    "redlock://a,b,c?quarantine=-1",
    "redlock://a,b,c?ssl_ca_certs=/ca.pem",
    "http://host",
    "redis://ho st",
    "redis://host\n",
    "redis://host\x00",
    "redis://host\x7f",
    "redis://host\udc80",
    "redis://host%00",
    "redis://host%ff",
    "redis://:p%ff@host",
    "redis://host:",
    "redis://host:0",
    "redis://host:65536",
    "redis://host:99999999999999999999",
    "redis://host:-1",
    "redis://host:+1",
    "redis://host:1e3",
    "redis://host:６379",
    "redis://host:port",
    "redis://:6379",
    "redis://user:password@:6379",
    "redis://host:1:2",
    "redis://::1",
    "redis://::1:6379",
    "redis://[::1",
    "redis://::1]",
    "redis://[::1]x:6379",
    "redis://[]:6379",
    "redis://[nonsense]:6379",
    "redis://a,b",
    "redis://a:1,b:2/0",
    "redis://a,,b",
    "redis://host/db",
    "redis://host/-1",
    "redis://host/1.5",
    "redis://host/0/1",
    "redis://host/٣",
    "redis://host/9999999",
    "redis://host/1?db=2",
    "redis://host?db=x",
    "redis://host?db=-1",
    "redis://host?db=",
    "redis://host?db",
    "redis://host?=1",
    "redis://host?db=1&db=1",
    "redis://host?db=1&",
    "redis://host?nosuch=1",
    "redis://host?socket_timeout=1",
    "redis://host?password=secret",
    "redis://host?DB=1",
    "redis://host?ssl_ca_certs=/ca.pem",
    "rediss://host?ssl_ca_certs=",
    "rediss://host?ssl_ca_certs=%00",
    "rediss://host?ssl_cert_reqs=none",
    "rediss://host?ssl_cert_reqs=required",
    "rediss://host?ssl_check_hostname=0",
    "rediss://host?ssl_check_hostname=False",
    "redis://host#0",
    "redis://host/0#",
    "redis:localhost",
    "redis:localhost:6379",
    "unix:",
    "unix://",
    "unix:///",
    "unix://host/path",
    "unix:///path?ssl_ca_certs=x",
    "unix:///path%00",
    "memory://?x=1",
    "sqlite:///x?nosuch=1",
]


@pytest.mark.parametrize("url", MALFORMED, ids=ascii)
def test_a_malformed_url_is_refused_at_once_in_both_flavors(url: str) -> None:
    for make in (Client.from_url, AsyncClient.from_url):
        with pytest.raises(ValueError, match=r"URL|option|scheme") as caught:
            make(url)
        assert len(str(caught.value)) > 20


@pytest.mark.parametrize("url", [b"redis://host", 1, 1.5, ["redis://host"], object(), True])
def test_what_is_not_text_is_refused(url: object) -> None:
    for make in (Client.from_url, AsyncClient.from_url):
        with pytest.raises(TypeError, match="must be a str"):
            make(url)  # type: ignore[arg-type]


READ = {
    "redis://": ("localhost", 6379, None),
    "redis:///4": ("localhost", 6379, 4),
    "redis://h": ("h", 6379, None),
    "REDIS://h:1": ("h", 1, None),
    "redis://h:65535/0": ("h", 65535, 0),
    "redis://h/": ("h", 6379, None),
    "redis://h?db=3": ("h", 6379, 3),
    "redis://h/3?db=3": ("h", 6379, 3),
    "redis://[::1]": ("::1", 6379, None),
    "redis://[fe80::1%25eth0]:7/1": ("fe80::1%eth0", 7, 1),
    "redis://u:p@[::1]:7": ("::1", 7, None),
    "valkey://h_1.example": ("h_1.example", 6379, None),
    "rediss://h:1/2?ssl_ca_certs=/a%20b": ("h", 1, 2),
}


@pytest.mark.parametrize("url", READ)
def test_what_is_read(url: str) -> None:
    options = redis_settings.from_url(parse(url)).options
    assert (options["host"], options["port"], options.get("db")) == READ[url]


PASSWORDS = {
    "redis://:p@h": (None, "p"),
    "redis://u:p@h": ("u", "p"),
    "redis://u@h": ("u", None),
    "redis://u:@h": ("u", ""),
    "redis://:@h": (None, ""),
    "redis://:p:q@h": (None, "p:q"),
    "redis://:p@q@h": (None, "p@q"),
    "redis://%75:%2F%3F%23%40%25%3A%20%C3%A9@h": ("u", "/?#@%: é"),
    "redis://:%0D%0A@h": (None, "\r\n"),
    "unix://u:p@/run/redis.sock": ("u", "p"),
}


@pytest.mark.parametrize("url", PASSWORDS)
def test_users_and_passwords(url: str) -> None:
    parsed = parse(url)
    secret = None if parsed.password is None else parsed.password.reveal()
    assert (parsed.username, secret) == PASSWORDS[url]
    assert "***" in str(parsed) if secret is not None or parsed.username else True


def test_str_and_repr_leave_out_passwords_and_options() -> None:
    url = parse("rediss://user:canary@h:1/2?ssl_ca_certs=canary")
    assert (str(url), repr(url)) == ("rediss://user:***@h:1/2", f"<StoreURL {url}>")
    assert str(parse("redis://canary@h")) == "redis://***@h"
    assert str(parse("unix://:canary@/s")) == "unix://:***@/s"
    assert str(parse("redis://[::1]:1")) == "redis://[::1]:1"
    assert "canary" not in repr(url.options)
    for secret in (url, Secret("canary"), redis_settings.from_url(url)):
        with pytest.raises(TypeError, match="pickled"):
            pickle.dumps(secret)


@pytest.mark.parametrize("slashes", ["", "/", "///"])
@pytest.mark.parametrize(
    "scheme",
    [
        *("redis", "rediss", "redis+sentinel", "redis+cluster", "valkey", "redlock:redis", "postgresql", "postgres"),
        *("mysql", "mariadb", "zookeeper", "zookeepers", "etcd", "etcds", "hazelcast", "hazelcasts"),
    ],
)
def test_a_password_is_not_taken_for_a_path(scheme: str, slashes: str) -> None:
    """With one slash or three there is no host: all up to the end would be a path, which errors and reprs show."""
    for secret in ("canary", "canary%zz", "x/canary", "é@canary"):
        with pytest.raises(ValueError, match="two slashes before its host") as caught:
            Client.from_url(f"{scheme}:{slashes}app:{secret}@db/app")
        assert "canary" not in str(caught.value)
        assert caught.value.__context__ is None


@pytest.mark.parametrize("slashes", ["", "/", "///"])
@pytest.mark.parametrize("place", ["/run/redis.sock", "localhost"])
def test_a_password_is_not_taken_for_the_path_of_a_socket(slashes: str, place: str) -> None:
    for secret in ("canary", "canary%zz", "x/canary", "é@canary"):
        with pytest.raises(ValueError, match=r"two slashes .* unix://user:password@/path") as caught:
            Client.from_url(f"unix:{slashes}app:{secret}@{place}")
        assert "canary" not in str(caught.value)
        assert caught.value.__context__ is None


def test_a_path_may_have_an_at_sign() -> None:
    assert parse("sqlite:/home/a@b/locks.db").path == "/home/a@b/locks.db"
    assert parse("unix:///run/a@b.sock").path == "/run/a@b.sock"
    assert parse("unix:///run/a%3Ab@c.sock").path == "/run/a:b@c.sock"
    assert parse("postgresql:///a%40b").path == "/a@b"


CANARY = "Zc4naryZ"
SPOILERS = st.text("/?#@:&=%[], \n\x00\udc80é0aZ", max_size=6)


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(["redis", "rediss", "unix", "valkey", "sqlite", "memory", "nosuch", ""]),
    SPOILERS, SPOILERS, SPOILERS, SPOILERS,
)  # fmt: skip
def test_no_error_has_a_part_of_the_password(scheme: str, user: str, before: str, after: str, rest: str) -> None:
    """The password holds everything that splits a URL; what is shown must not have the letters on either side of it."""
    url = f"{scheme}://{user}:{CANARY}{before}{CANARY}{after}{CANARY}@host{rest}"
    try:
        redis_settings.from_url(parse(url))
    except (ValueError, TypeError) as error:
        refused = error
    else:
        assert CANARY not in repr(parse(url))
        return
    shown = "".join(traceback.TracebackException.from_exception(refused, capture_locals=True).format())
    ours = shown.partition("leasehold/stores/url.py")[2]  # the frames above are this test's
    assert CANARY not in str(refused)
    assert CANARY not in ours


@settings(max_examples=600, deadline=None)
@given(st.one_of(st.text(max_size=40), st.text("redis:/@?#[]%,&=019.", max_size=30).map("redis://".__add__)))
def test_parse_reads_or_refuses_and_nothing_else(text: str) -> None:
    try:
        url = parse(text)
    except ValueError:
        return
    assert isinstance(url, StoreURL)
    str(url), repr(url)
    try:
        redis_settings.from_url(url)
    except ValueError:
        return


def test_a_url_from_the_environment_is_read_and_hidden_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEASEHOLD_URL", "redis://:canary@host:port")
    with pytest.raises(ValueError, match="port") as caught:
        Client.from_url()
    text = "".join(traceback.TracebackException.from_exception(caught.value, capture_locals=True).format())
    assert "canary" not in text.partition("client.py")[2]
