"""Renewals of lease rows that a database refuses: holders and observers learn the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from leasehold import LeaseLost, StoreRefused
from leasehold.events import Event, InDoubt, Reconnected, Renewed, RequestFailed
from leasehold_lab.runtimes.harnesses import Harness
from support.flavors import both
from support.stores.own_database import OwnDatabase, with_tables

NO_SUCH_TABLE = {"postgresql": "42P01", "mariadb": "1146"}


class Watching:
    """An observer that wants all events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def wants(self, kind: type[Event]) -> bool:
        return True

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def failed(self, request: str) -> list[Event]:
        return [event for event in self.events if isinstance(event, RequestFailed) and event.request == request]

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture(params=["postgresql", "mariadb"])
def database(request: pytest.FixtureRequest) -> Iterator[OwnDatabase]:
    yield from with_tables(request)


async def comes(harness: Harness, what: Callable[[], object], limit: float = 20.0) -> None:
    until = harness.now() + limit
    while not what():
        assert harness.now() < until
        await harness.sleep(0.02)


@both
def test_a_refused_renewal_names_the_reason(database: OwnDatabase, harness: Harness) -> None:
    """In the error of `renew`, in the events, and in the loss; and no event says that the store answers again."""
    seen, code = Watching(), NO_SUCH_TABLE[database.system]

    async def body(harness: Harness) -> None:
        client = harness.client(database.url, observer=seen)
        hold = await client.lock("x", lease=12.0).acquire(timeout=5)
        short = await client.lock("short", lease=2.0).acquire(timeout=5)
        assert hold is not None
        assert short is not None
        database.run("ALTER TABLE leasehold_name RENAME TO away")
        with pytest.raises(StoreRefused) as caught:
            await client.lock("other").acquire(timeout=1)
        assert caught.value.code == code
        with pytest.raises(StoreRefused) as caught:
            await hold.renew()
        assert caught.value.code == code
        await comes(harness, lambda: short.lost)
        with pytest.raises(LeaseLost) as lost:
            short.raise_if_lost()
        assert isinstance(lost.value.__cause__, StoreRefused)
        assert lost.value.__cause__.code == code
        await comes(harness, lambda: [one for one in seen.of(InDoubt) if one.name == "x"])
        assert [getattr(event.error, "code", None) for event in seen.of(InDoubt)] == [code] * len(seen.of(InDoubt))
        assert len(seen.failed("renew")) >= 2
        assert not seen.of(Reconnected)
        database.run("ALTER TABLE away RENAME TO leasehold_name")
        await comes(harness, lambda: seen.of(Renewed))
        assert seen.of(Reconnected)
        await hold.renew()
        await hold.release()

    harness.run(body)
