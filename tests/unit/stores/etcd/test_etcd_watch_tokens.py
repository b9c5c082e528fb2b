"""The watch of a client with a user: old releases of etcd call an expired token a missing right (etcd issue 12385)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from leasehold._model import LeaseTerms, LockMode, Owner, Ticket
from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold._url import Secret
from leasehold.stores.etcd.connection.gateway import Gateway
from leasehold.stores.etcd.connection.settings import Settings
from leasehold.stores.etcd.http.base import Endpoint, Reply, Request, Unanswered
from leasehold.stores.etcd.keys import Keys, b64
from leasehold.stores.etcd.sessions import KeepAlive, Session
from leasehold.stores.etcd.waiting import TicketState, Watch

RUNTIME = BlockingRuntime()
KEYS = Keys("x/lock/", "x/cell/", "x/grave/", "x/mark/")
BLOCKER = "x/lock/a/1-other"
WITHIN = 30.0
DENIED = {"created": True, "canceled": True, "cancel_reason": "etcdserver: permission denied"}
DELETION = {"events": [{"type": "DELETE", "kv": {"key": b64(BLOCKER), "mod_revision": "8"}}]}


class Stream:
    """What etcd tells of one watch."""

    def __init__(self, *results: Any) -> None:
        self._lines: Iterator[bytes] = iter([json.dumps({"result": result}).encode() + b"\n" for result in results])
        self._closed = threading.Event()

    async def read(self, timeout: float) -> bytes:
        if (line := next(self._lines, None)) is not None:
            return line
        if self._closed.wait(timeout):
            raise Unanswered("the stream is closed")
        return b""

    def close(self) -> None:
        self._closed.set()


class Etcd:
    """Gives out a token for each login, and lets the watch of the user begin with some of them."""

    def __init__(self, *good: str) -> None:
        self.good = good
        self.logins = 0
        self.watches = list[str]()

    async def ask(self, endpoint: Endpoint, request: Request, until: float, *, urgent: bool = False) -> Reply:
        if request.target == "/version":
            return Reply(200, b'{"etcdserver":"3.5.5"}')
        assert request.target == "/v3/auth/authenticate"
        self.logins += 1
        return Reply(200, b'{"token":"%d"}' % self.logins)

    async def stream(self, endpoint: Endpoint, request: Request, until: float) -> tuple[int, Stream]:
        token = dict(request.headers).get("Authorization", "")
        self.watches.append(token)
        return 200, Stream({"created": True}, DELETION) if token in self.good else Stream(DENIED)


def woken(etcd: Any, user: str | None) -> Watch:
    """Let a ticket wait for another to be deleted, and return its watch when it is woken."""
    settings = Settings("etcd", (Endpoint("etcd", 1),), username=user, password=Secret("secret"))
    watch = Watch(RUNTIME, Gateway(RUNTIME, settings, etcd), KEYS)
    ticket = Ticket("t" * 32, LeaseTerms(LockMode(), Owner("host", 1, "client"), 30.0))
    session = Session(7, 30, 30.0, RUNTIME.now())
    state = TicketState(RUNTIME, "a", ticket, session, KeepAlive(RUNTIME.now(), 30.0), KEYS)
    watch.wait_for(state, [BLOCKER], 7)
    assert watch.listen(7)
    assert finish(state.signal.wait(WITHIN)), "it is woken"
    finish(watch.close(WITHIN))
    return watch


def test_a_watch_that_is_denied_is_opened_once_more_with_a_new_token() -> None:
    etcd = Etcd("2")
    watch = woken(etcd, "app")
    assert watch.denied is None
    assert etcd.watches[:2] == ["1", "2"]


@pytest.mark.parametrize(("user", "watches"), [("app", ["1", "2"]), (None, [""])])
def test_a_watch_that_is_denied_with_a_new_token_raises(user: str | None, watches: list[str]) -> None:
    etcd = Etcd()
    watch = woken(etcd, user)
    assert "permission denied" in str(watch.denied)
    assert etcd.watches == watches
