"""A waiter between whose two looks at the subscription another thread of its client opens it, without a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, cast

import pytest

from leasehold import StoreUnavailable
from leasehold._model import LeaseTerms, LockMode, Owner, Ticket
from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.stores._sql.transport import SQLTransport
from leasehold.stores._sql.waiting import Waiting

TICKET = Ticket("t1", LeaseTerms(LockMode(), Owner("h", 1, "c"), lease=30.0))


class Transport:
    """Its subscription opens when its test says so."""

    def __init__(self) -> None:
        self.number = 0
        self.after_look: Callable[[], None] = lambda: None

    @property
    def channel(self) -> str:
        return "channel" if self.number else ""

    def generation(self) -> int:
        seen = self.number
        self.after_look()
        return seen

    async def listen(self, within: float) -> int:
        self.number = 1  # just after this waiter has given up
        raise StoreUnavailable("the subscription took too long")


async def nothing_there(tickets: object) -> tuple[int, list[Any]]:
    return 0, []


async def sleeps(*_: object) -> NoReturn:
    raise AssertionError("it sleeps without messages, and nothing polls for it")


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Waiting:
    monkeypatch.setattr(Waiting, "_sleep", sleeps)
    found = Waiting(BlockingRuntime(), nothing_there)
    found.expect("n", TICKET)
    return found


def test_one_whose_own_attempt_took_too_long_claims_once_more(waiting: Waiting) -> None:
    """Its entry names no channel, so no message would come."""
    transport = cast("SQLTransport", Transport())
    assert finish(waiting.wait(transport, TICKET, 0, 3.0)) is None


def test_one_that_leaves_the_attempt_to_another_claims_once_more(waiting: Waiting) -> None:
    transport = Transport()
    waiting._pause, waiting._listen_at = 8.0, waiting._runtime.now() + 8.0

    def another_succeeds() -> None:
        transport.number, waiting._pause = 1, 0.0

    transport.after_look = another_succeeds
    assert finish(waiting.wait(cast("SQLTransport", transport), TICKET, 0, 3.0)) is None
