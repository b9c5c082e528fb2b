"""In which order the hosts of a URL and their addresses are tried, and for how long each. No server."""

from __future__ import annotations

import random
from collections.abc import Sequence
from socket import AF_INET, AF_INET6, gaierror
from typing import cast

import pytest

pytest.importorskip("psycopg")

from leasehold._runtimes.base import Runtime, finish
from leasehold._url import parse
from leasehold.stores._sql.transport import addresses_in
from leasehold.stores.postgres.connection.endpoints import Endpoint, Endpoints, endpoints_of
from leasehold.stores.postgres.connection.errors import Broken
from leasehold.stores.postgres.connection.settings import Settings, from_url

WITHIN = 6.0
DNS = {"one": ["10.0.0.1"], "two": ["10.0.0.2", "10.0.0.3"], "three": ["10.0.0.4"]}
REFUSED = "connection to server at {} failed: Connection refused"
LDAP = 'connection to server at {} failed: FATAL: LDAP authentication failed for user "app"'
NO_LOGIN = 'connection to server at {} failed: FATAL: role "stranger" does not exist'
READ_ONLY = "connection to server at {} failed: session is read-only"
STARTING = "connection to server at {} failed: FATAL: the database system is starting up"


class Servers:
    """The reply of each address, at once; without one it is silent. The clock shows how long each was waited for."""

    def __init__(self, **replies: str) -> None:
        self.replies = replies
        self.slow_names: set[str] = set()
        self.blocked_names: dict[str, float] = {}
        self.slow: dict[str, float] = {}
        self.tried: list[tuple[str, float]] = []
        self._now = 0.0
        self.jitter = random.Random(1).random
        self._endpoints = Endpoints(cast("Runtime", self), self._lookup)

    def now(self) -> float:
        return self._now

    def connect(self, settings: Settings) -> str:
        """Return the address that answers."""
        self.tried.clear()
        return finish(self._endpoints.first(settings, self._attempt, self._now + WITHIN))

    async def _lookup(self, host: str, within: float) -> Sequence[str]:
        if host in self.slow_names:
            self._wait(host, within)
            raise TimeoutError
        if host in self.blocked_names:  # a blocking client waits until the resolver gives up
            self._wait(host, self.blocked_names[host])
            raise gaierror(-3, "Temporary failure in name resolution")
        return DNS[host]

    async def _attempt(self, settings: Settings, endpoint: Endpoint, until: float) -> str:
        place = endpoint.address or endpoint.host
        reply = self.replies.get(place.replace("10.0.0.", "at"))
        needed = self.slow.get(place, 0.0 if reply is not None else WITHIN * 9)
        self._wait(place, min(needed, until - self._now))
        if reply is None or self._now >= until:
            raise TimeoutError
        if reply:
            raise Broken(reply.format(place))
        return place

    def _wait(self, place: str, seconds: float) -> None:
        self.tried.append((place, round(seconds, 3)))
        self._now += seconds


def url(hosts: str, options: str = "") -> Settings:
    return from_url(parse(f"postgresql://{hosts}/d{options}"))


def test_each_gets_its_share_of_the_time_that_is_left() -> None:
    servers = Servers(at4="")
    assert servers.connect(url("one,two,three")) == "10.0.0.4"
    assert servers.tried == [("10.0.0.1", 2.0), ("10.0.0.2", 1.333), ("10.0.0.3", 1.333), ("10.0.0.4", 0.0)]


def test_one_that_refuses_leaves_its_time_to_the_others() -> None:
    servers = Servers(at1=REFUSED)
    with pytest.raises(Broken, match=r"refused .* failed: timed out"):
        servers.connect(url("one,three"))
    assert servers.tried == [("10.0.0.1", 0.0), ("10.0.0.4", WITHIN)]


def test_one_that_was_silent_is_tried_last_until_it_answers() -> None:
    servers = Servers(at2="", at3="")
    settings = url("one,two", "?target_session_attrs=read-write")
    assert servers.connect(settings) == "10.0.0.2"
    assert servers.connect(settings) == "10.0.0.2"
    assert servers.tried == [("10.0.0.2", 0.0)], "the silent one costs nothing more"
    servers.replies.update(at1="", at2=READ_ONLY, at3=READ_ONLY)  # it is back, and the primary again
    assert servers.connect(settings) == "10.0.0.1"
    assert servers.connect(settings) == "10.0.0.1"
    assert servers.tried == [("10.0.0.1", 0.0)], "it has its place again"


def test_the_addresses_of_a_silent_one_are_not_tried_before_other_hosts() -> None:
    servers = Servers(at2=READ_ONLY, at4="")
    settings = url("two,three")
    assert servers.connect(settings) == "10.0.0.4"
    assert servers.connect(settings) == "10.0.0.4"
    assert [place for place, _ in servers.tried] == ["10.0.0.2", "10.0.0.4"]


def test_dns_that_is_silent_for_one_name_does_not_take_all_the_time() -> None:
    servers = Servers(at4="")
    servers.slow_names.add("one")
    assert servers.connect(url("one,three")) == "10.0.0.4"
    assert servers.tried == [("one", WITHIN / 2), ("10.0.0.4", 0.0)]
    assert servers.connect(url("one,three")) == "10.0.0.4"
    assert servers.tried == [("10.0.0.4", 0.0)]


def test_a_slow_server_is_reached_by_the_next_call_and_from_then_on() -> None:
    """Its name has two addresses of the same machine, which needs longer than half of the time to let a client in."""
    servers = Servers(at2="", at3="")
    servers.slow = {"10.0.0.2": 3.6, "10.0.0.3": 3.6}
    with pytest.raises(Broken, match="timed out"):
        servers.connect(url("two"))
    for _ in range(3):
        assert servers.connect(url("two")) == "10.0.0.2"
        assert servers.tried == [("10.0.0.2", 3.6)]
    servers.slow.clear()  # it is quick again
    for _ in range(2):
        assert servers.connect(url("two")) == "10.0.0.2"
    assert not set(servers._endpoints._silent) & {Endpoint("two", "", "10.0.0.2")}


def test_a_dead_host_costs_the_slow_one_behind_it_one_call_more() -> None:
    servers = Servers(at4="")
    servers.slow = {"10.0.0.4": 3.6}
    for _ in range(2):
        with pytest.raises(Broken, match="timed out"):
            servers.connect(url("one,three"))
    for _ in range(3):
        assert servers.connect(url("one,three")) == "10.0.0.4"


def test_a_slow_primary_before_a_standby_is_reached_by_each_call_but_the_first() -> None:
    servers = Servers(at1="", at4=READ_ONLY)
    servers.slow = {"10.0.0.1": 3.6}
    with pytest.raises(Broken, match="read-only"):
        servers.connect(url("one,three"))
    for _ in range(3):
        assert servers.connect(url("one,three")) == "10.0.0.1"
        assert [place for place, _ in servers.tried] == ["10.0.0.4", "10.0.0.1"]


def test_a_name_that_blocked_the_lookup_is_tried_last_although_the_lookup_failed() -> None:
    servers = Servers(at4="")
    servers.blocked_names["one"] = 1.2 * WITHIN
    with pytest.raises(Broken, match="could not translate"):
        servers.connect(url("one,three"))
    for _ in range(2):
        assert servers.connect(url("one,three")) == "10.0.0.4"
        assert servers.tried == [("10.0.0.4", 0.0)]


@pytest.mark.parametrize(
    ("reply", "goes_on"), [(NO_LOGIN, False), (LDAP, False), (REFUSED, True), (READ_ONLY, True), (STARTING, True)]
)
def test_a_refused_login_ends_the_list_as_in_libpq(reply: str, goes_on: bool) -> None:
    servers = Servers(at1=reply, at4="")
    if goes_on:
        assert servers.connect(url("one,three")) == "10.0.0.4"
    else:
        with pytest.raises(Broken, match="FATAL"):
            servers.connect(url("one,three"))
        assert servers.tried == [("10.0.0.1", 0.0)]


def test_a_random_order_is_one_of_hosts_and_of_addresses() -> None:
    first = set()
    servers = Servers(at1="", at2="", at3="", at4="")
    for _ in range(40):
        first.add(servers.connect(url("one,two,three", "?load_balance_hosts=random")))
    assert first == {"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"}
    assert {servers.connect(url("one,two,three")) for _ in range(5)} == {"10.0.0.1"}


def test_a_random_order_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGLOADBALANCEHOSTS", "random")
    servers = Servers(at1="", at4="")
    assert {servers.connect(url("one,three")) for _ in range(40)} == {"10.0.0.1", "10.0.0.4"}
    assert {servers.connect(url("one,three", "?load_balance_hosts=disable")) for _ in range(5)} == {"10.0.0.1"}


def test_no_time_is_no_silence() -> None:
    servers = Servers(at1="")
    with pytest.raises(Broken, match="timed out"):
        finish(servers._endpoints.first(url("one"), servers._attempt, servers.now()))
    assert not servers.tried
    assert not servers._endpoints._silent


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a", [Endpoint("a")]),
        ("a,b", [Endpoint("a"), Endpoint("b")]),  # libpq has a port from PGPORT, but not if it is given an empty one
        ("a:1,b", [Endpoint("a", "1"), Endpoint("b", "5432")]),
        ("a,b:6000", [Endpoint("a", "5432"), Endpoint("b", "6000")]),
    ],
)
def test_the_hosts_of_a_url(text: str, found: list[Endpoint]) -> None:
    assert endpoints_of(url(text)) == found


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, [Endpoint()]),
        ({"port": "6000"}, [Endpoint(port="6000")]),
        ({"host": "/run", "port": "1"}, [Endpoint("/run", "1")]),
        (
            {"host": "a,b", "hostaddr": "10.0.0.1,10.0.0.2"},
            [Endpoint("a", "", "10.0.0.1"), Endpoint("b", "", "10.0.0.2")],
        ),
        (
            {"hostaddr": "10.0.0.1,10.0.0.2", "port": "1"},
            [Endpoint("", "1", "10.0.0.1"), Endpoint("", "1", "10.0.0.2")],
        ),
        ({"host": "a,,b"}, [Endpoint()]),
        ({"host": "a,b", "port": "1,2,3"}, [Endpoint()]),
        ({"host": "a,b", "service": "s"}, [Endpoint()]),
    ],
)
def test_the_hosts_of_options(options: dict[str, str], found: list[Endpoint]) -> None:
    assert endpoints_of(Settings("there", options)) == found


def test_an_address_from_the_environment_is_left_to_libpq(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOSTADDR", "10.0.0.1")
    assert endpoints_of(url("a")) == [Endpoint()]


@pytest.mark.parametrize("host", ["/run/postgresql", "@abstract", "10.0.0.1", "::1", "fe80::1%eth0", ""])
def test_what_is_no_name(host: str) -> None:
    assert not Endpoint(host).is_name


def test_a_list_of_ports_from_the_environment_is_left_to_libpq(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPORT", "5433,5434")
    assert endpoints_of(url("a,b")) == [Endpoint()]
    assert endpoints_of(url("a:1,b:2")) == [Endpoint("a", "1"), Endpoint("b", "2")]
    monkeypatch.setenv("PGPORT", "5433")
    assert endpoints_of(url("a,b")) == [Endpoint("a"), Endpoint("b")]
    assert Endpoint("a", "", "10.0.0.1").failed("why") == 'connection to server at "a" (10.0.0.1) failed: why'


def test_an_address_that_the_resolver_found_twice_is_tried_once() -> None:
    found = [(AF_INET, 1, 6, "", ("10.0.0.1", 0)), (AF_INET, 1, 6, "", ("10.0.0.1", 0))]
    assert addresses_in([*found, (AF_INET6, 1, 6, "", ("fe80::1", 0, 0, 2))]) == ["10.0.0.1", "fe80::1%2"]
