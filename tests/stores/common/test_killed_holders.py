"""``kill -9`` of a holder: the next client acquires within the time that the page of its system states.

The holder dies right after its grant, so nearly all of its lease is left. Beside the page's own words there is no
allowance but for time in which this process got no turn of the machine, measured as `leasehold verify` does.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leasehold_lab.runtimes.harnesses import AsyncioHarness, BlockingHarness, Harness
from leasehold_lab.servers.zookeeper import TICK
from support.missed_turns import turns_missed
from support.stores.doc_pages import row
from support.stores.killed_clients import parties

SESSION = 1.5
"""Seconds of a session of ZooKeeper."""


@dataclass(frozen=True, slots=True)
class System:
    """A system in one of its modes: how the holder gets there, where the page states its bound, and what that is.

    Attributes:
        fixture: of the server.
        options: what follows its URL.
        lease: of the hold that is killed, in seconds.
        cell: page, beginning of the row and number of the column after that.
        words: how the cell begins.
        bound: what these words are, in seconds.

    """

    fixture: str
    options: str
    lease: float
    cell: tuple[str, str, int]
    words: str
    bound: float


CRASH = "free after a crash of the holder (liveness)"
AGAIN = "free again after a crash of the holder (liveness)"
KILL = "free again after `kill -9` of the holder (liveness)"

SYSTEMS = {
    "postgresql": System("postgres_server", "", 1.5, ("postgresql", CRASH, 0), "the lease + 250 ms", 1.75),
    "postgresql-session": System(
        "postgres_server", "?mode=session", 30.0, ("postgresql", CRASH, 1), "at once, within 0.25 s", 0.25
    ),
    "mariadb": System("mariadb_server", "", 1.5, ("mysql", KILL, 0), "the lease + 250 ms", 1.75),
    "mariadb-session": System("mariadb_server", "?mode=session", 30.0, ("mysql", KILL, 1), "a second", 1.0),
    "zookeeper": System(
        *("zookeeper_server", f"/killed?session_timeout={SESSION}", 30.0),
        *(("zookeeper", AGAIN, 0), "the session timeout and one tick", SESSION + TICK),
    ),
    "etcd": System("etcd_server", "", 2.0, ("etcd", AGAIN, 0), "within its lease + 1 s", 3.0),
}


@pytest.mark.parametrize("flavor", ["blocking", "asyncio"])
@pytest.mark.parametrize("name", list(SYSTEMS))
def test_the_next_client_acquires_within_the_documented_time(
    name: str, flavor: str, namespace: str, request: pytest.FixtureRequest, record_property: Any
) -> None:
    system = SYSTEMS[name]
    page, label, column = system.cell
    assert row(page, label)[column].startswith(system.words), "the page says something else"
    taken = list[float]()
    if system.fixture == "mariadb_server":
        request.getfixturevalue("mariadb_url")  # with the tables made
    server = SimpleNamespace(url=request.getfixturevalue(system.fixture).url + system.options)
    harness: Harness = BlockingHarness() if flavor == "blocking" else AsyncioHarness()

    async def body(harness: Harness) -> None:
        client = harness.client(server.url, namespace=namespace)
        with cast("Any", parties()) as start:
            for _ in range(2):
                holder = start(server, namespace, flavor, "hold", system.lease, "x")
                while "token" not in (said := holder.hear()):
                    pass
                job = harness.spawn(lambda: client.lock("x", lease=30.0).acquire(timeout=60))
                until = harness.now() + 20
                while (info := await client.inspect("x")) is None or not info.waiters:
                    assert harness.now() < until
                    await harness.sleep(0.01)
                with turns_missed() as missed:
                    killed = time.monotonic()
                    holder.kill()
                    hold = await job.result()
                    took = time.monotonic() - killed
                assert hold is not None
                assert hold.token > said["token"]
                await hold.release()
                taken.append(took)
                print(
                    f"{name}, {flavor}: free after {took:.3f} s of {system.bound:.2f}; {missed.total():.2f} s not ours"
                )
                assert took < system.bound + missed.total()

    harness.run(body)
    record_property(f"spread:free after a kill, {name}", taken)
