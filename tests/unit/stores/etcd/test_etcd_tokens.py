"""Requests of a client with a user whose token ends, or is forgotten by another task of the client meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold._url import Secret
from leasehold.stores.etcd.connection.gateway import Gateway
from leasehold.stores.etcd.connection.settings import Settings
from leasehold.stores.etcd.http.base import Endpoint, Reply, Request

RUNTIME = BlockingRuntime()
WITHIN = 30.0
OLD_TOKEN = Reply(401, b'{"error":"etcdserver: invalid auth token","code":16}')
NO_LEADER = Reply(503, b'{"error":"etcdserver: no leader","code":14}')
NO_USER = Reply(400, b'{"error":"etcdserver: user name is empty","code":3}')


class Etcd:
    """Gives out a token for each login; only the last one is valid."""

    def __init__(self) -> None:
        self.valid = ""
        self.logins = 0
        self.first: Callable[[], Reply | None] = lambda: None  # what happens at the next request, and its response

    async def ask(self, endpoint: Endpoint, request: Request, until: float, *, urgent: bool = False) -> Reply:
        if request.target == "/version":
            return Reply(200, b'{"etcdserver":"3.5.16"}')
        token = dict(request.headers).get("Authorization")
        if request.target == "/v3/auth/authenticate":
            assert token is None, "a login needs no token"
            self.logins += 1
            self.valid = f"{self.logins}"
            return Reply(200, b'{"token":"%d"}' % self.logins)
        first, self.first = self.first, lambda: None
        if (reply := first()) is not None:
            return reply
        if token is None:
            return NO_USER
        return Reply(200, b'{"token":"%s"}' % token.encode()) if token == self.valid else OLD_TOKEN


@pytest.fixture
def etcd() -> Etcd:
    return Etcd()


@pytest.fixture
def gateway(etcd: Any) -> Gateway:
    """One that has logged in."""
    settings = Settings("etcd", (Endpoint("etcd", 1),), username="app", password=Secret("secret"))
    gateway = Gateway(RUNTIME, settings, etcd)
    assert ask(gateway) == "1"
    return gateway


def ask(gateway: Gateway) -> str:
    """Send a request; return the token with which it was carried out."""
    return str(finish(gateway.call("/v3/kv/range", {}, RUNTIME.now() + WITHIN))["token"])


@pytest.mark.parametrize("reply", [OLD_TOKEN, NO_LEADER], ids=["old token", "no leader"])
def test_a_request_whose_token_the_watch_forgets_meanwhile_logs_in_again(
    etcd: Etcd, gateway: Gateway, reply: Reply
) -> None:
    def forgotten() -> Reply:
        assert gateway.forget_token()
        return reply

    etcd.first = forgotten
    assert ask(gateway) == "2"
    assert etcd.logins == 2


def test_a_request_whose_token_another_one_has_replaced_does_not_log_in(etcd: Etcd, gateway: Gateway) -> None:
    def replaced() -> Reply:
        etcd.valid = "expired"
        assert ask(gateway) == "2"
        return OLD_TOKEN

    etcd.first = replaced
    assert ask(gateway) == "2"
    assert etcd.logins == 2
