"""In which order the addresses of MySQL's host are tried, and for how long each. No server."""

from __future__ import annotations

import socket
from typing import Any, cast

import pytest

pytest.importorskip("pymysql")

from leasehold import StoreUnavailable
from leasehold._runtimes.base import Runtime, finish
from leasehold._url import parse
from leasehold.stores.mysql.connection import handshake
from leasehold.stores.mysql.connection.settings import from_url

WITHIN = 6.0


class Host:
    """A name, the seconds that its lookup takes, and those that each address takes to let a client in."""

    def __init__(self, lookup: float = 0.0, **needed: float) -> None:
        self.lookup, self.needed = lookup, {f"10.0.0.{name[2:]}": seconds for name, seconds in needed.items()}
        self.tried: list[str] = []
        self._now = 100.0
        self._settings = from_url(parse("mysql://app@db.test/d"))

    def now(self) -> float:
        return self._now

    def connect(self) -> str:
        """Return the address that answers."""
        self.tried.clear()
        anything: Any = print
        opened = handshake.opened(
            self._settings, cast("Runtime", self), WITHIN, resolve=self._resolve, dial=anything, wrap=anything,
            driver_error=Exception,
        )  # fmt: skip
        return cast("str", finish(opened))

    async def _resolve(self, settings: Any, within: float) -> list[Any]:
        self._now += self.lookup
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 3306)) for address in self.needed]

    async def open(self, settings: Any, runtime: Any, until: float, dial: Any, *_: Any) -> str:
        address: str = dial.args[1]
        self.tried.append(address)
        self._now = min(until, self._now + self.needed[address])
        if self._now >= until:
            raise StoreUnavailable("timed out")
        return address


def host(monkeypatch: pytest.MonkeyPatch, lookup: float = 0.0, **needed: float) -> Host:
    made = Host(lookup, **needed)
    monkeypatch.setattr(handshake, "_opened", made.open)
    return made


def test_a_slow_lookup_of_one_address_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    assert host(monkeypatch, 3.6, at1=0.0).connect() == "10.0.0.1"


def test_a_lookup_that_is_too_slow_is_an_error_of_the_dns(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = host(monkeypatch, 6.1, at1=0.0)
    with pytest.raises(StoreUnavailable, match="the DNS does not answer"):
        slow.connect()
    assert not slow.tried


def test_a_slow_server_is_reached_by_the_next_call_and_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = host(monkeypatch, at1=3.6, at2=3.6)
    with pytest.raises(StoreUnavailable):
        slow.connect()
    for _ in range(3):
        assert slow.connect() == "10.0.0.1"


def test_a_silent_address_costs_the_slow_one_behind_it_one_call_more(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = host(monkeypatch, at1=60.0, at2=3.6)
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            slow.connect()
    for _ in range(3):
        assert slow.connect() == "10.0.0.2"
    assert slow.tried == ["10.0.0.2"]


def test_the_address_of_an_interface_keeps_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    made = host(monkeypatch)
    made.needed = {"fe80::1%2": 0.0}

    async def resolve(settings: Any, within: float) -> list[Any]:
        return [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fe80::1", 3306, 0, 2))]

    monkeypatch.setattr(made, "_resolve", resolve)
    assert made.connect() == "fe80::1%2"
