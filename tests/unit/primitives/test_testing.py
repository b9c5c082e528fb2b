"""What `leasehold.testing` gives to the tests of users."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from leasehold import AsyncClient, LeaseLost
from leasehold.testing import TestClient


@pytest.fixture
def locks() -> Iterator[TestClient]:
    with TestClient() as client:
        yield client


def test_each_client_has_a_store_of_its_own(locks: TestClient) -> None:
    with TestClient() as other, locks.lock("a"), other.lock("a"):
        assert [info.name for info in locks.holds()] == ["a"]


def test_a_hold_expires_on_request(locks: TestClient) -> None:
    seen = list[LeaseLost]()
    hold = locks.lock("a").acquire()
    assert hold
    hold.on_lost(seen.append)
    locks.expire(hold)
    assert hold.lost
    assert [error.token for error in seen] == [hold.token]
    with pytest.raises(LeaseLost):
        hold.raise_if_lost()
    locks.assert_free("a")
    later = locks.lock("a").acquire(timeout=0)
    assert later
    assert later.token > hold.token
    later.release()
    for ended in (hold, later):
        with pytest.raises(ValueError, match="has ended before"):
            locks.expire(ended)


def test_a_block_whose_hold_expires_raises_at_its_end(locks: TestClient) -> None:
    def block() -> None:
        with locks.lock("a") as hold:
            locks.expire(hold)

    with pytest.raises(LeaseLost, match="expired"):
        block()


def test_all_names_of_several_expire_together(locks: TestClient) -> None:
    hold = locks.multi_lock(["a", "b"]).acquire()
    assert hold
    locks.expire(hold)
    locks.assert_free("a")
    locks.assert_free("b")


def test_the_lock_delay_applies_after_an_expiry(locks: TestClient) -> None:
    hold = locks.lock("a", lock_delay=60).acquire()
    assert hold
    locks.expire(hold)
    assert locks.lock("a").acquire(timeout=0) is None
    locks.clock.advance(61)
    assert locks.lock("a").acquire(timeout=0)


def test_time_that_passes_at_once_ends_leases_and_values(locks: TestClient) -> None:
    hold = locks.lock("a", lease=30).acquire()
    assert hold
    locks.clock.advance(29)
    assert hold.held
    locks.clock.advance(31)
    assert hold.lost
    fetched = iter(range(9))
    token = locks.cached("token", 3600, lambda: next(fetched))
    assert (token.get(), token.get()) == (0, 0)
    locks.clock.advance(3601)
    assert token.get() == 1
    with pytest.raises(ValueError, match="a clock does not go back"):
        locks.clock.advance(-1)


def test_a_waiter_gives_up_when_the_clock_says_so(locks: TestClient) -> None:
    result = list[object]()
    with locks.lock("a", lease=7200):
        waiter = threading.Thread(target=lambda: result.append(locks.lock("a").acquire(timeout=3600)))
        waiter.start()
        until = time.monotonic() + 10
        while not (info := locks.inspect("a")) or not info.waiters:
            assert time.monotonic() < until
            time.sleep(0.005)
        locks.clock.advance(3601)
        waiter.join(10)
    assert result == [None]


def test_both_flavors_share_the_store_and_the_clock(locks: TestClient) -> None:
    async def main() -> None:
        async with locks.async_client() as aio:
            hold = await aio.lock("a").acquire()
            assert hold
            locks.assert_held("a")
            assert await aio.lock("a").acquire(timeout=0) is None
            locks.expire(hold)
            assert hold.lost
            lost = asyncio.Event()
            with pytest.raises(LeaseLost):
                await stalls(aio, lost)
            assert lost.is_set()

    async def stalls(aio: AsyncClient, lost: asyncio.Event) -> None:
        async with aio.lock("b") as hold:
            hold.on_lost(lambda error: lost.set())
            locks.clock.advance(31)
            await asyncio.sleep(60)

    asyncio.run(main())


def test_a_hold_that_expires_cancels_the_block_of_the_task_that_says_so(locks: TestClient) -> None:
    async def main() -> None:
        async with locks.async_client() as aio, asyncio.timeout(5):
            with pytest.raises(LeaseLost, match="expired"):
                await says_so(aio)
            await asyncio.sleep(0.05)  # no cancellation is left over

    async def says_so(aio: AsyncClient) -> None:
        async with aio.lock("a") as hold:
            locks.expire(hold)
            assert hold.lost
            await asyncio.sleep(60)

    asyncio.run(main())


def test_failed_assertions_name_what_is_held(locks: TestClient) -> None:
    with locks.lock("a"):
        with pytest.raises(AssertionError, match="'b' is not held; held: 'a'"):
            locks.assert_held("b")
        with pytest.raises(AssertionError, match="'a' is held"):
            locks.assert_free("a")
    with pytest.raises(AssertionError, match="held: nothing"):
        locks.assert_held("a")


SUITE = """
import sys

def test_a_report_is_written_once(locks):
    with locks.lock("report") as hold:
        locks.assert_held("report")

def test_that_the_next_test_has_another_store(locks):
    locks.assert_free("report")
"""

LIGHT = """
import sys

def test_nothing_of_leasehold_is_imported():
    assert "leasehold.testing" not in sys.modules
"""


@pytest.mark.parametrize(("text", "passed"), [(SUITE, 2), (LIGHT, 1)])
def test_the_plug_in_brings_the_fixture(text: str, passed: int, tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert f"{passed} passed" in done.stdout
