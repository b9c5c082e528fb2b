"""Hazelcast without a server: URLs, what is refused, what errors mean, and what the client remembers of sessions."""

from __future__ import annotations

import importlib
import sys
import uuid
from typing import Any

import pytest

from leasehold import AsyncClient, Client, MissingDriver, StoreUnavailable, Unsupported
from leasehold._runtimes.base import run_sync
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.errors import StoreRefused
from leasehold.stores import registry
from leasehold.stores.hazelcast import Hazelcast, inspecting
from leasehold.stores.hazelcast.connection import errors, requests
from leasehold.stores.hazelcast.connection.driver import Call
from leasehold.stores.hazelcast.connection.modules import module
from leasehold.stores.hazelcast.connection.requests import Ownership
from leasehold.stores.hazelcast.sessions import Session
from leasehold.stores.hazelcast.store import FencedLockStore
from leasehold.stores.hazelcast.tickets import took_lock
from leasehold_lab.servers.base import free_port

theirs: Any = module("errors")
group_id: Any = importlib.import_module("hazelcast.protocol").RaftGroupId("default", 0, 7)


def opened(url: str) -> Hazelcast:
    found = registry.opener(url)
    assert isinstance(found, Hazelcast)
    return found


# --- the URL -------------------------------------------------------------------------------------------------------


def test_a_url_names_members_cluster_and_group() -> None:
    found = opened("hazelcast://app:secret@h1,h2:5702/shop?group=orders").settings
    assert found.hosts == (("h1", 5701), ("h2", 5702))
    assert (found.cluster, found.group, found.username) == ("shop", "orders", "app")
    assert "secret" not in repr(found)


def test_the_least_url() -> None:
    found = opened("hazelcast://").settings
    assert (found.hosts, found.cluster, found.group) == ((("localhost", 5701),), "dev", "default")
    assert not found.tls


def test_a_secure_url_checks_the_certificate() -> None:
    found = opened("hazelcasts://h?ssl_ca_certs=/ca.pem&ssl_certfile=/c&ssl_keyfile=/k").settings
    assert dict(found.tls) == {
        "ssl_enabled": True,
        "ssl_check_hostname": True,
        "ssl_cafile": "/ca.pem",
        "ssl_certfile": "/c",
        "ssl_keyfile": "/k",
    }


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("hazelcast:h", "two slashes"),
        ("hazelcast://h/a/b", "name of the cluster"),
        ("hazelcast://[::1]", "IPv6"),
        ("hazelcast://app@h", "without a password"),
        ("hazelcasts://h?ssl_check_hostname=yes", "true or false"),
        ("hazelcast://h?group=a%40b", "without '@'"),
        ("hazelcast://h?group=Metadata", "METADATA"),
        ("hazelcasts://h?ssl_certfile=/c", "go together"),
    ],
)
def test_a_mistaken_url_is_refused(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        registry.opener(url)


def test_the_default_namespace_adds_nothing_to_the_names_that_java_has() -> None:
    runtime = BlockingRuntime()
    stores = [opened("hazelcast://h").open(runtime, namespace) for namespace in ("default", "a:b")]
    assert [store._name_prefix for store in stores if isinstance(store, FencedLockStore)] == ["", "a%3Ab:"]


# --- what is refused when it is made -------------------------------------------------------------------------------

REFUSED: dict[str, Any] = {
    "fair": lambda client: client.lock("x", fair=True),
    "delay": lambda client: client.lock("x", lock_delay=1.0),
    "meta": lambda client: client.lock("x", meta={"a": 1}),
    "rw": lambda client: client.rw_lock("x", fair=False).reader(),
    "semaphore": lambda client: client.semaphore("x", 2, fair=False),
    "latch": lambda client: client.latch("x", 2),
    "barrier": lambda client: client.barrier("x", 2),
    "versioned": lambda client: client.versioned("x"),
    "election": lambda client: client.election("x"),
    "once": lambda client: client.once("x", ttl=1.0),
    "cached": lambda client: client.cached("x", 1.0, lambda: 1),
}


@pytest.mark.parametrize("flavor", [Client, AsyncClient])
@pytest.mark.parametrize("what", REFUSED)
def test_what_a_lock_of_hazelcast_cannot_carry_is_refused_with_the_reason(flavor: Any, what: str) -> None:
    client = flavor.from_url("hazelcast://h")
    with pytest.raises(Unsupported) as refused:
        REFUSED[what](client)
    assert "use another store" in str(refused.value) or "without" in str(refused.value)


def test_a_missing_driver_names_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("leasehold.stores.hazelcast")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "hazelcast", None)  # as if it were not installed
    with pytest.raises(MissingDriver, match=r"pip install 'leasehold\[hazelcast\]'"):
        Client.from_url("hazelcast://h")


def test_where_nothing_listens_the_cluster_and_the_remedy_are_named() -> None:
    url = f"hazelcast://127.0.0.1:{free_port()}/shop"
    with Client.from_url(url, response_timeout=0.5) as client, pytest.raises(StoreUnavailable) as refused:
        client.lock("x").acquire(timeout=0.5)
    assert "that the cluster is called 'shop'" in str(refused.value)
    assert not refused.value.unknown


# --- what errors mean ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "means"),
    [
        (theirs.SessionExpiredError("x"), errors.SessionEnded),
        (theirs.CPGroupDestroyedError("x"), errors.SessionEnded),
        (theirs.IllegalMonitorStateError("x"), errors.NotOwner),
        (theirs.WaitKeyCancelledError("x"), errors.WaitCancelled),
        (theirs.DistributedObjectDestroyedError("x"), StoreRefused),
        (theirs.AccessControlError("x"), StoreRefused),
        (theirs.UnsupportedOperationError("x"), Unsupported),
    ],
)
def test_an_error_of_the_driver_becomes_one_of_ours(error: Exception, means: type[Exception]) -> None:
    assert type(errors.to_error(error, "h:5701")) is means


def test_members_that_are_too_old_to_list_locks_are_named_with_what_they_can_do() -> None:
    said = str(errors.to_error(theirs.UnsupportedOperationError("x"), "h:5701"))
    assert "listing needs members of version 5.4" in said
    assert "showing one name does not" in said


@pytest.mark.parametrize(
    "error",
    [
        theirs.TargetDisconnectedError("x"),
        theirs.OperationTimeoutError("x"),
        theirs.HazelcastClientNotActiveError("x"),
        theirs.IndeterminateOperationStateError("x"),
        OSError("x"),
        ValueError("whatever the driver raises next year"),
    ],
)
def test_an_error_that_does_not_say_what_was_done_is_unknown(error: Exception) -> None:
    found = errors.to_error(error, "h:5701")
    assert isinstance(found, StoreUnavailable)
    assert found.unknown


@pytest.mark.parametrize("name", [*errors.ANSWERS, *errors.MEANINGS])
def test_each_error_that_is_listed_is_one_of_the_driver(name: str) -> None:
    assert issubclass(getattr(theirs, name), Exception)


def test_a_cluster_without_cp_is_told_of_all_ways_out() -> None:
    said = str(errors.no_cp("h:5701", "because"))
    assert all(words in said for words in ("5.4", "Enterprise", "another store", "because"))


# --- sessions and claims -------------------------------------------------------------------------------------------


def test_a_session_is_valid_for_its_time_to_live_less_a_heartbeat() -> None:
    assert Session(1, None, 300.0, 5.0, 0.0).valid == 295.0
    assert Session(1, None, 10.0, 8.0, 0.0).valid == 5.0
    assert Session(1, None, 300.0, 5.0, 0.0).every == 5.0
    assert Session(1, None, 8.0, 5.0, 0.0).every == 2.0


def test_an_owner_is_used_again_only_if_no_claim_of_it_may_still_arrive() -> None:
    session = Session(1, None, 300.0, 5.0, 0.0)
    first, second, third = session.enter(), session.enter(), session.enter()
    assert len({first, second, third}) == 3
    for thread in (first, second, third):
        session.leave(thread, reuse=thread != second)
    assert [session.enter() for _ in range(3)] == [first, third, 4], "the one that is free for longest comes first"
    assert session.tickets == 3


def test_a_confirmed_request_never_sets_a_session_back() -> None:
    session = Session(1, None, 300.0, 5.0, 100.0)
    session.alive_at(90.0)
    assert session.since == 100.0
    session.alive_at(110.0)
    assert (session.since, session.beat_at) == (110.0, 115.0)


@pytest.mark.parametrize(
    ("result", "answered", "took"),
    [
        (5, True, True),
        (0, True, False),
        (theirs.WaitKeyCancelledError("x"), True, False),
        (theirs.TargetDisconnectedError("x"), False, False),
    ],
)
def test_a_claim_is_settled_by_an_answer_alone(result: Any, answered: bool, took: bool) -> None:
    future = module("future").Future()
    call = Call(future, BlockingRuntime(), "h:5701")
    assert not call.done()
    assert not call.answered()
    assert not took_lock(call)
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
    assert (call.answered(), took_lock(call)) == (answered, took)


def test_a_list_may_take_longer_than_each_of_its_requests() -> None:
    names = [f"n{number:03}" for number in range(2 * inspecting.AT_ONCE + 1)]

    class Slow:
        """Takes four seconds for the names, and for each lot of locks that are asked for together."""

        def __init__(self) -> None:
            self.time, self.sent = 0.0, 0

        def now(self) -> float:
            return self.time

        async def ask(self, request: object, read: object, until: float) -> Any:
            return await self.answer(names, until)

        async def send(self, request: object, read: object, until: float) -> Ownership:
            self.sent += 1
            return Ownership(self.sent, 1, 1)

        async def answer(self, call: Any, until: float) -> Any:
            self.time += 4.0 if call is names else 4.0 / inspecting.AT_ONCE
            assert self.time <= until, "did not answer in time"
            return call

    slow: Any = Slow()
    views = run_sync(inspecting.inspect(slow, group_id, "", "", {}, exact=False, now=slow.now, within=5.0))
    assert [view.name for view in views] == names
    assert slow.time > 12.0


def test_the_id_of_a_holder_that_is_shown_names_its_owner() -> None:
    assert inspecting.owner_in("12.3") == (12, 3)
    assert inspecting.owner_in("12.-3") == (12, -3)
    assert inspecting.owner_in("F2x_-kd0Q2aB3c4D5e6F7g") is None


def test_requests_have_the_numbers_of_the_protocol() -> None:
    uid = uuid.uuid4()
    made = {
        requests.lock(group_id, "x", 1, 2, uid): 0x070100,
        requests.try_lock(group_id, "x", 1, 2, uid): 0x070200,
        requests.unlock(group_id, "x", 1, 2, uid): 0x070300,
        requests.ownership(group_id, "x"): 0x070400,
        requests.beat(group_id, 1): 0x1F0300,
        requests.names(group_id): 0x220600,
    }
    for (request, _), number in made.items():
        assert int.from_bytes(request.buf[6:10], "little") == number
