"""Requests for many leases of one client: how many are under way at the same time."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Coroutine
from typing import Any

from leasehold._model import Kind, LeaseTerms, LockMode, Owner, Ticket
from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.stores.etcd.at_once import AT_ONCE, for_each
from leasehold.stores.etcd.keys import Keys
from leasehold.stores.etcd.renewing import Renewals
from leasehold.stores.etcd.sessions import KeepAlive, Session, Sessions
from leasehold.stores.etcd.waiting import TicketState

KEYS = Keys("x/lock/", "x/cell/", "x/grave/", "x/mark/")
WITHIN = 30.0
MANY = 3 * AT_ONCE + 1


class Counting(BlockingRuntime):
    """Counts how many requests are sent at once: each takes a thread."""

    most = 0

    async def gather(self, *work: Coroutine[Any, Any, Any]) -> list[Any]:
        self.most = max(self.most, len(work))
        return await super().gather(*work)


class Answering:
    """Answers each request of a session, and counts them."""

    def __init__(self) -> None:
        self.asked = Counter[str]()

    async def call(self, path: str, body: Any, until: float, *, urgent: bool = False) -> Any:
        self.asked[path] += 1
        return {"TTL": "30", "header": {"raft_term": "1"}}


def test_many_sessions_are_renewed_and_revoked_a_few_at_a_time() -> None:
    """Holds with a cap have a lease each. A thread for each of hundreds at once is more than some systems allow."""
    runtime, etcd = Counting(), Answering()
    gateway: Any = etcd
    sessions = Sessions(runtime, gateway, KEYS)
    living = [one_with_a_lease(runtime, number) for number in range(MANY)]
    sessions._all = dict.fromkeys(state.session for state in living)
    renewals = Renewals(runtime, gateway, sessions, gateway, KEYS)
    finish(renewals._kept_alive(living, {}, runtime.now() + WITHIN))
    assert (etcd.asked["/v3/lease/keepalive"], runtime.most) == (MANY, AT_ONCE)
    runtime.most = 0
    finish(sessions.revoke_all())
    assert (etcd.asked["/v3/lease/revoke"], runtime.most) == (MANY, AT_ONCE)


def one_with_a_lease(runtime: Counting, number: int) -> TicketState:
    ticket = Ticket(f"{number:032}", LeaseTerms(LockMode(Kind.MUTEX), Owner("host", 1, "client"), 30.0))
    session = Session(number, 30, 30.0, runtime.now(), shared=False)
    state = TicketState(runtime, "a", ticket, session, KeepAlive(runtime.now(), 30.0), KEYS)
    state.acquiring = False
    return state


def test_one_that_gets_no_response_does_not_delay_the_others() -> None:
    """Its response comes only when all others have theirs."""
    left, others_done = set(range(1, MANY)), threading.Event()

    async def work(number: int) -> bool:
        if number == 0:
            return others_done.wait(WITHIN)
        left.discard(number)
        if not left:
            others_done.set()
        return True

    assert finish(for_each(BlockingRuntime(), range(MANY), work)) == [True] * MANY


def test_each_result_and_each_error_is_at_its_place() -> None:
    async def work(number: int) -> int:
        if number % 2:
            raise ValueError(number)
        return number

    results = finish(for_each(BlockingRuntime(), range(MANY), work))
    assert [one.args[0] if isinstance(one, ValueError) else one for one in results] == list(range(MANY))
    assert [isinstance(one, ValueError) for one in results] == [number % 2 == 1 for number in range(MANY)]


def test_nothing_begins_after_a_cancellation() -> None:
    begun = list[int]()

    async def work(number: int) -> None:
        begun.append(number)
        raise KeyboardInterrupt

    results = finish(for_each(BlockingRuntime(), range(MANY), work))
    assert len(begun) == AT_ONCE
    assert [type(one) for one in results] == [KeyboardInterrupt] * AT_ONCE + [RuntimeError] * (MANY - AT_ONCE)
