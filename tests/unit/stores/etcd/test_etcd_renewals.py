"""What may happen to a ticket while a batch of renewals waits for etcd: made to happen there."""

from __future__ import annotations

import json
from typing import Any

import pytest

from leasehold._model import Kind, LeaseTerms, LockMode, Owner, RenewalResult, Ticket
from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.errors import StoreUnavailable
from leasehold.stores.etcd.connection.errors import classify
from leasehold.stores.etcd.connection.settings import Settings
from leasehold.stores.etcd.http.base import Endpoint
from leasehold.stores.etcd.keys import Keys, b64
from leasehold.stores.etcd.renewing import Renewals
from leasehold.stores.etcd.sessions import KeepAlive, Session, Sessions
from leasehold.stores.etcd.store import EtcdStore
from leasehold.stores.etcd.waiting import TicketState

RUNTIME = BlockingRuntime()
KEYS = Keys("x/lock/", "x/cell/", "x/grave/", "x/mark/")


def ticket_state(name: str, session: Any, keys: Keys, *, ends_in: float) -> TicketState:
    ticket = Ticket(name * 32, LeaseTerms(LockMode(Kind.MUTEX), Owner("host", 1, "client"), 30.0))
    state = TicketState(RUNTIME, name, ticket, session, KeepAlive(RUNTIME.now(), 30.0), keys)
    state.acquiring, state.until = False, RUNTIME.now() + ends_in
    return state


def test_a_ticket_under_which_an_acquire_succeeds_meanwhile_is_not_removed() -> None:
    keys, session, removed = (
        Keys("x/lock/", "x/cell/", "x/grave/", "x/mark/"),
        Session(7, 30, 30.0, RUNTIME.now()),
        list[TicketState](),
    )
    living = ticket_state("a", session, keys, ends_in=30.0)
    expired = ticket_state("b", session, keys, ends_in=-1.0)

    class Sessions:
        async def renew(self, session: Any, until: float, *, urgent: bool) -> StoreUnavailable:
            expired.until = RUNTIME.now() + 30.0  # an acquire renews it now, from another thread
            return StoreUnavailable("no answer", unknown=True)  # as `gather` hands it over

    async def remove(those: Any, until: float) -> dict[TicketState, StoreUnavailable]:
        removed.extend(those)
        return {}

    nothing: Any = None
    renewals = Renewals(RUNTIME, nothing, Sessions(), nothing, keys)  # type: ignore[arg-type]
    renewals.remove_keys = remove  # type: ignore[method-assign]
    results, left = finish(renewals.renew([living, expired], [], RUNTIME.now() + 5.0))
    unanswered, unknown = results
    assert isinstance(unanswered, StoreUnavailable)
    assert unknown is RenewalResult.UNKNOWN
    assert (removed, left, expired.being_removed) == ([], set(), False)


def test_a_renewal_does_not_take_back_a_removal_while_the_acquire_waits_for_it() -> None:
    """Its deletion may arrive late: the acquire must not go on under the same key."""
    nothing: Any = None  # no request is sent
    store = EtcdStore(RUNTIME, Settings("nowhere", (Endpoint("nowhere", 1),)), "test", nothing)
    old = ticket_state("a", Session(7, 30, 30.0, RUNTIME.now()), store._keys, ends_in=-1.0)
    store._states[old.ticket.id] = old
    store._sessions._shared[30] = old.session
    store._sweep_at = RUNTIME.now() + 60.0
    removed, granted = list[TicketState](), list[bool]()

    async def remove(those: Any, until: float) -> dict[TicketState, StoreUnavailable]:
        if not removed:
            removed.append(old)
            await store.renew([("a", old.ticket)], within=5.0)  # of another thread, which runs now
        return {}

    async def grant(ttl: int, until: float, *, shared: bool) -> Session:
        granted.append(shared)
        raise StoreUnavailable("no session is granted here")

    store._renewals.remove_keys = remove  # type: ignore[method-assign]
    store._sessions._granted = grant  # type: ignore[method-assign]
    assert old.begin_removal(RUNTIME.now()), "an earlier removal, without a response"
    with pytest.raises(StoreUnavailable):
        finish(store.try_acquire("a", old.ticket, join=True, within=5.0))
    assert (old.being_removed, granted) == (True, [True]), "it asks for another session"


def test_a_removal_waits_for_an_acquire_and_an_acquire_for_a_removal() -> None:
    state = ticket_state("a", Session(7, 30, 30.0, RUNTIME.now()), KEYS, ends_in=-1.0)
    assert state.begin_acquire()
    assert not state.begin_removal(RUNTIME.now())
    state.acquiring = False
    assert state.begin_removal(RUNTIME.now())
    assert not state.begin_acquire()
    assert state.begin_removal(RUNTIME.now()), "the acquire is not under way: it has the key removed, too"


@pytest.mark.parametrize("over", [True, False])
def test_the_key_of_a_lost_hold_is_deleted_only_if_its_session_lives(over: bool) -> None:
    """A former leader may say that the session has ended: until the holder is notified, its key excludes others."""
    nothing: Any = None  # no request is sent
    store, removed = (
        EtcdStore(RUNTIME, Settings("nowhere", (Endpoint("nowhere", 1),)), "test", nothing),
        list[TicketState](),
    )
    session = Session(7, 30, 30.0, RUNTIME.now(), over=over)
    held = ticket_state("a", session, store._keys, ends_in=30.0)
    held.held = held.unknown = True  # an earlier request of its had no answer, and may still arrive
    store._states[held.ticket.id] = held

    async def renew(tickets: Any, abandoned: Any, until: float) -> tuple[list[RenewalResult], set[TicketState]]:
        return [RenewalResult.GONE], set()

    async def remove(those: Any, until: float) -> dict[TicketState, StoreUnavailable]:
        removed.extend(those)
        return {}

    store._renewals.renew = renew  # type: ignore[method-assign,assignment]
    store._renewals.remove_keys = remove  # type: ignore[method-assign]
    assert finish(store.renew([("a", held.ticket)], within=5.0)) == [RenewalResult.GONE]
    assert removed == ([] if over else [held])


@pytest.mark.parametrize("shared", [True, False])
def test_an_acquire_of_another_ticket_removes_an_expired_one_and_wakes_its_waiter(shared: bool) -> None:
    """A shared session lives on by the acquires, and with it the key. One of a single ticket ends by itself."""
    nothing: Any = None  # no request is sent
    store, removed = (
        EtcdStore(RUNTIME, Settings("nowhere", (Endpoint("nowhere", 1),)), "test", nothing),
        list[TicketState](),
    )
    expired = ticket_state("a", Session(7, 30, 30.0, RUNTIME.now(), shared), store._keys, ends_in=-1.0)
    living = ticket_state("b", Session(8, 30, 30.0, RUNTIME.now(), shared), store._keys, ends_in=30.0)
    store._states = {one.ticket.id: one for one in (expired, living)}

    async def remove(those: Any, until: float) -> dict[TicketState, StoreUnavailable]:
        removed.extend(those)
        return {}

    async def no_session(*_: Any) -> Any:
        raise StoreUnavailable("no session is granted here")

    store._renewals.remove_keys = remove  # type: ignore[method-assign]
    store._sessions.shared = no_session  # type: ignore[method-assign,assignment]
    another = Ticket("c" * 32, living.ticket.terms)
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            finish(store.try_acquire("x", another, join=True, within=5.0))
    assert removed == ([expired] if shared else [])
    assert list(store._states.values()) == [living]
    assert (expired.notified, living.notified) == (True, False)


def test_a_close_revokes_all_leases_though_a_renewal_ends_one_meanwhile() -> None:
    """As a thread of the watchdog may, which a close does not wait for."""
    revoked = list[str]()

    class Etcd:
        async def call(self, path: str, body: Any, until: float) -> Any:
            revoked.append(body["ID"])
            return {}

    etcd: Any = Etcd()
    sessions = Sessions(RUNTIME, etcd, KEYS)

    class Ending(Session):
        @property
        def until(self) -> float:
            sessions.ended(gone)  # now, in another thread
            return super().until

    gone = Session(8, 30, 30.0, RUNTIME.now())
    living = [Ending(7, 30, 30.0, RUNTIME.now()), gone, Session(9, 30, 30.0, RUNTIME.now())]
    sessions._all.update(dict.fromkeys(living))
    finish(sessions.revoke_all())
    assert sorted(revoked) == ["7", "9"]


def test_a_store_that_cannot_revoke_its_leases_closes_its_connections() -> None:
    """As when no thread can be started."""
    closed = list[bool]()

    class Http:
        async def close(self) -> None:
            closed.append(True)

    http: Any = Http()
    store = EtcdStore(RUNTIME, Settings("nowhere", (Endpoint("nowhere", 1),)), "test", http)

    async def no_thread() -> None:
        raise RuntimeError("can't start new thread")

    store._sessions.revoke_all = no_thread  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="new thread"):
        finish(store.close())
    assert closed == [True]


class Removing:
    """Answers removals: some sessions have ended, and the requests for some names get no response."""

    def __init__(self, ended: int, unanswered: str) -> None:
        self.ended = f'"lease": "{ended}"'
        self.unanswered = b64(f"x/lock/{unanswered}/")[:11]
        self.requests = 0

    async def call(self, path: str, body: Any, until: float, *, urgent: bool = False) -> Any:
        self.requests += 1
        text = json.dumps(body)
        if self.ended in text:
            raise classify("etcdserver: requested lease not found")
        if self.unanswered in text:
            raise StoreUnavailable("no response", unknown=True)
        return {}


def test_only_tickets_whose_removal_had_no_response_are_removed_again() -> None:
    etcd, keys = Removing(ended=7, unanswered="c"), Keys("x/lock/", "x/cell/", "x/grave/", "x/mark/")
    gateway: Any = etcd
    sessions = [Session(number, 30, 30.0, RUNTIME.now()) for number in (7, 8, 9)]
    states = [
        ticket_state(name, session, keys, ends_in=-1.0)
        for name, session in zip("abc", sessions, strict=True)
        for _ in range(2)
    ]
    for state in states:
        state.unknown = True
    answered = ticket_state("d", sessions[2], keys, ends_in=-1.0)  # removed without a tombstone
    renewals = Renewals(RUNTIME, gateway, gateway, gateway, keys)
    left = finish(renewals.remove_keys([*states, answered], RUNTIME.now() + 5.0))
    assert list(left) == states[4:]
    assert etcd.requests == 4, "one for each session, and one for those without a tombstone"


def test_the_living_are_renewed_before_the_expired_are_removed() -> None:
    """A removal without a response takes all the time that is left."""
    keys, session, requests = Keys("x/lock/", "x/cell/", "x/grave/", "x/mark/"), Session(7, 30, 30.0, 0.0), list[str]()
    living, expired, abandoned = (
        ticket_state(name, session, keys, ends_in=ends) for name, ends in (("a", 30.0), ("b", -1.0), ("c", -1.0))
    )

    class Etcd:
        async def call(self, path: str, body: Any, until: float, *, urgent: bool = False) -> Any:
            requests.append("removal" if body.get("success") and not body.get("failure") else path)
            if requests[-1] == "removal":
                raise StoreUnavailable("no response", unknown=True)
            key = {"response_range": {"kvs": [{"key": b64(living.key)}]}}
            return {"TTL": "30", "header": {"raft_term": "1"}, "responses": [key]}

    etcd: Any = Etcd()
    renewals = Renewals(RUNTIME, etcd, Sessions(RUNTIME, etcd, keys), etcd, keys)
    results, left = finish(renewals.renew([living, expired], [abandoned], RUNTIME.now() + 5.0))
    assert results == [RenewalResult.QUEUED, RenewalResult.GONE]
    assert left == {expired, abandoned}
    assert requests == ["/v3/lease/keepalive", "/v3/kv/txn", "removal"]
