"""Every call of a client ends in a documented class of error, whatever the server does, and so do its events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

import pytest

from leasehold import AsyncClient
from leasehold.errors import LeaseholdError, StoreRefused, StoreUnavailable
from leasehold.events import Event, GaveUp, RequestFailed
from leasehold_lab.conformance.case_context import internal_classes, raised
from leasehold_lab.runtimes.harnesses import Harness
from leasehold_lab.servers import RedisReplicas, RedisServer
from leasehold_lab.servers.base import free_port
from support.flavors import both
from support.stores.redis.refusals import cluster_node

DOCUMENTED = {"StoreUnavailable", "StoreRefused", "Unsupported"}


class Everything(list[Event]):
    """An observer that keeps all events."""

    def wants(self, kind: type[Event]) -> bool:
        return True

    def __call__(self, event: Event) -> None:
        self.append(event)


CALLS: dict[str, Callable[[AsyncClient], Awaitable[object]]] = {
    "acquire": lambda client: client.lock("a").acquire(),
    "try": lambda client: client.lock("a").acquire(blocking=False),
    "locked": lambda client: client.lock("a").locked(),
    "semaphore": lambda client: client.semaphore("s", 2).acquire(),
    "multi_lock": lambda client: client.multi_lock(["a", "b"]).acquire(),
    "leader": lambda client: client.election("e").leader(),
    "count_down": lambda client: client.latch("l", 1).count_down(),
    "get": lambda client: client.versioned("v").get(),
    "put": lambda client: client.versioned("v").put("x", if_version=0),
    "holds": lambda client: client.holds(),
    "inspect": lambda client: client.inspect("a"),
    "force_release": lambda client: client.force_release("a", 1),
    "ping": lambda client: client.ping(),
    "diagnose": lambda client: client.diagnose(),
}


PATIENT = ("acquire", "ping", "inspect")
"""The calls to groups of servers, in which each takes its whole time."""


@pytest.fixture(scope="module")
def refusing() -> Iterator[dict[str, str]]:
    """Return URLs of servers that refuse what locks need, or are not there."""
    nobody = free_port()
    with (
        RedisServer(users=["poor on >secret ~* &* +hello +client +ping"]) as server,
        RedisReplicas() as replicas,
        cluster_node() as node,
    ):
        replica = replicas.replicas[0]
        yield {
            "nobody": f"redis://127.0.0.1:{nobody}",
            "no cluster": f"redis+cluster://127.0.0.1:{nobody}",
            "no sentinel": f"redis+sentinel://127.0.0.1:{nobody}/locks",
            "no redlock": f"redlock://127.0.0.1:{nobody},127.0.0.1:{free_port()},127.0.0.1:{free_port()}",
            "poor": server.url.replace("//", "//poor:secret@"),
            "wrong": server.url.replace("//", "//poor:wrong@"),
            "replica": replica.url,
            "node": node.url,
            "cluster without slots": node.url.replace("redis://", "redis+cluster://"),
        }


@both
@pytest.mark.parametrize(
    "where",
    [
        *("nobody", "no cluster", "no sentinel", "no redlock"),
        *("poor", "wrong", "replica", "node", "cluster without slots"),
    ],
)
def test_every_call_raises_a_documented_class(harness: Harness, refusing: dict[str, str], where: str) -> None:
    events, found = Everything(), dict[str, list[str]]()

    async def body(harness: Harness) -> None:
        async with harness.client(refusing[where], response_timeout=0.3, observer=events) as client:
            for name in CALLS if refusing[where].startswith("redis:") else PATIENT:
                try:
                    await CALLS[name](client)
                except LeaseholdError as error:
                    found[name] = internal_classes(error)

    harness.run(body)
    assert found
    assert {name: classes for name, classes in found.items() if classes} == {}
    failures = [event for event in events if isinstance(event, RequestFailed)]
    assert all(internal_classes(event.error) == [] for event in failures)
    assert {event.why for event in events if isinstance(event, GaveUp)} <= DOCUMENTED


@both
def test_a_right_that_is_lost_while_one_waits_or_holds(harness: Harness, namespace: str) -> None:
    """Such an error is raised in a waiter, and is the cause of a loss."""
    events = Everything()
    with RedisServer(users=["app on >secret ~* &* +@all"]) as server:
        url = server.url.replace("//", "//app:secret@")

        async def body(harness: Harness) -> None:
            async with harness.client(url, observer=events) as client:
                hold = await client.lock("a").acquire()
                assert hold is not None
                server.command("ACL", "SETUSER", "app", "-evalsha", "-eval", "-subscribe", "resetchannels")
                assert isinstance(await raised(StoreUnavailable, hold.renew()), StoreRefused)
                assert isinstance(await raised(StoreUnavailable, client.lock("a").acquire(timeout=2)), StoreRefused)
                assert isinstance(await raised(StoreUnavailable, client.versioned("v").get()), StoreRefused)
                server.command("ACL", "SETUSER", "app", "+@all", "allchannels")

        harness.run(body)
    failures = [event.error for event in events if isinstance(event, RequestFailed)]
    assert failures
    assert all(internal_classes(error) == [] for error in failures)
