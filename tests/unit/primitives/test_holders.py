"""Whether a name is taken is said of what it is in use as, and of nothing else: what acquire refuses is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasehold import Client, NameInUse
from leasehold.stores.memory import Memory

NUMBERS = itertools.count()

Use = tuple[str, int]
"""A kind of lock and the limit of a semaphore, which the others have not."""

USES = st.one_of(
    st.sampled_from([("lock", 0), ("rlock", 0), ("reader", 0), ("writer", 0), ("upgradeable", 0), ("multi_lock", 0)]),
    st.tuples(st.just("semaphore"), st.integers(1, 4)),
)


def lock_of(client: Client, use: Use) -> Any:
    kind, limit = use
    match kind:
        case "lock" | "rlock":
            return getattr(client, kind)("x")
        case "multi_lock":
            return client.multi_lock(["x"])
        case "semaphore":
            return client.semaphore("x", limit)
        case _:
            return getattr(client.rw_lock("x"), kind)()


def answer(ask: Callable[[], object]) -> object:
    """Return what is said, or the words with which it is refused."""
    try:
        return ask()
    except NameInUse as error:
        return error.message


@given(held=USES, asked=USES)
@settings(max_examples=200, deadline=None)
def test_what_cannot_be_acquired_for_its_kind_cannot_be_looked_at(held: Use, asked: Use) -> None:
    memory = Memory(f"taken {next(NUMBERS)}")
    with ExitStack() as stack:
        one, two = (stack.enter_context(Client(memory)) for _ in range(2))
        mine, other = lock_of(one, held), lock_of(two, asked)
        hold = mine.acquire()
        got = answer(lambda: other.acquire(blocking=False))
        if isinstance(got, str):
            looks = [other.locked, *([other.available, other.permits(asked[1]).locked] if asked[1] else [])]
            assert [answer(look) for look in looks] == [got] * len(looks)
        else:
            if got is not None:
                got.release()  # type: ignore[attr-defined]
            assert other.locked() is (got is None)
            if asked[1]:
                assert other.available() == asked[1] - 1
        hold.release()
        assert other.locked() is False


def test_the_error_names_what_it_is_and_who_has_it() -> None:
    with Client(Memory("taken, named")) as client:
        hold = client.semaphore("x", 2).acquire()
        assert hold is not None
        with pytest.raises(
            NameInUse, match="'x' is in use as a semaphore of 2 and cannot be used as a mutex"
        ) as caught:
            client.lock("x").locked()
        assert caught.value.held_by == hold.owner
