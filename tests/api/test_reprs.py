"""What the objects say of themselves: their names, and a text that tells them apart, alike in both flavors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leasehold_lab.runtimes.harnesses import Harness
from support.flavors import both

MADE: dict[str, Callable[[Any], Any]] = {
    "<Lock 'a'>": lambda client: client.lock("a"),
    "<RLock 'a'>": lambda client: client.rlock("a"),
    "<RWLock 'a'>": lambda client: client.rw_lock("a"),
    "<RWLockSide 'a'>": lambda client: client.rw_lock("a").reader(),
    "<UpgradeableSide 'a'>": lambda client: client.rw_lock("a").upgradeable(),
    "<Semaphore 'a' of 3>": lambda client: client.semaphore("a", 3),
    "<SemaphorePermits 'a'>": lambda client: client.semaphore("a", 3).permits(2),
    "<MultiLock 'a + b'>": lambda client: client.multi_lock(["b", "a"]),
    "<Election 'election/a'>": lambda client: client.election("a"),
    "<Latch 'a' of 3>": lambda client: client.latch("a", 3),
    "<Barrier 'a' of 3>": lambda client: client.barrier("a", 3),
    "<Once 'a'>": lambda client: client.once("a", ttl=60),
    "<CachedValue 'a'>": lambda client: client.cached("a", 60, lambda: 1),
    "<Scheduled 'a'>": lambda client: client.scheduled("a", at_least=1, at_most=10),
    "<VersionedCell 'a'>": lambda client: client.versioned("a"),
    "<Synchronized 'a:{b}'>": lambda client: client.synchronized("a:{b}"),
}
"""How the sync facade of each is shown; the other face has ``Async`` before it."""

HELD: dict[str, Callable[[Any], Any]] = {
    "<Hold 'a' token={} held>": lambda client: client.lock("a"),
    "<MultiHold 'a + b' tokens={{'a': {}, 'b': {}}} held>": lambda client: client.multi_lock(["b", "a"]),
    "<Leadership 'election/a' token={} held>": lambda client: client.election("a"),
    "<UpgradeableHold 'a' token={} held>": lambda client: client.rw_lock("a").upgradeable(),
}


def public(thing: Any) -> Any:
    """Return what a user has: in the blocking runtime a `sync_facade` of it awaits."""
    return getattr(thing, "blocking", thing)


def shown(harness: Harness, text: str) -> str:
    return text if harness.name == "blocking" else text.replace("<", "<Async", 1)


@both
def test_each_object_is_shown_by_its_kind_and_its_name(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        client = public(harness.client())
        assert repr(client) == shown(harness, "<Client <MemoryStore ''>>")
        for text, made in MADE.items():
            thing = made(client)
            assert repr(thing) == shown(harness, text)
            for name in (getattr(thing, what, None) for what in ("name", "key")):
                assert name is None or f"'{name}'" in text

    harness.run(body)


@both
def test_a_multi_lock_names_its_locks_in_the_order_in_which_they_are_acquired(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        assert public(harness.client()).multi_lock(["b", "c", "a"]).names == ("a", "b", "c")

    harness.run(body)


@both
@pytest.mark.parametrize("text", HELD)
def test_a_hold_is_shown_with_its_tokens_and_what_became_of_it(harness: Harness, text: str) -> None:
    async def body(harness: Harness) -> None:
        hold = await HELD[text](harness.client()).acquire()
        tokens = hold.tokens.values() if hasattr(hold, "tokens") else [hold.token]
        assert repr(public(hold)) == shown(harness, text.format(*tokens))
        await hold.release()
        assert repr(public(hold)) == shown(harness, text.format(*tokens).replace("held>", "released>"))

    harness.run(body)
