"""Names from arguments: what cannot work is refused when the function is decorated; different arguments never meet."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold import AsyncClient, AsyncHold, Client, Hold
from leasehold.primitives.calls.synchronized import CallName
from leasehold.stores.memory import Memory


@dataclass
class User:
    id: int


@dataclass
class Order:
    id: str
    user: User


def ship(order: Any, to: Any = "here", *items: Any, fast: bool = False, **more: Any) -> None: ...


def named(template: Any, *args: Any, **kwargs: Any) -> str:
    return CallName(template, ship, None).of(args, kwargs)


ORDER = Order("a:1", User(7))


@pytest.mark.parametrize(
    ("template", "args", "kwargs", "name"),
    [
        ("order:{order}", (7,), {}, "order:7"),
        ("order:{order}", (), {"order": "a:b%c"}, "order:a:b%c"),
        ("order:{order.id}", (ORDER,), {}, "order:a:1"),
        ("{order.user.id}:{order.id}", (ORDER,), {}, "7:a:1"),
        ("{order.id}:{order.user.id}", (ORDER,), {}, "a%3A1:7"),
        ("{order}:{to}", ("x%:y", "z:%"), {}, "x%25%3Ay:z:%"),
        ("{order}:{to}", ("x",), {}, "x:here"),
        ("{order[id]}", ({"id": 3},), {}, "3"),
        ("{items[1]}", (1, 2, "a", "b"), {}, "b"),
        ("{more[who]}/{fast}", (1,), {"who": "me/you"}, "me%2Fyou/False"),
        ("{order:05d}", (7,), {}, "00007"),
        ("{order!r}", ("x",), {}, "'x'"),
        ("a {{b}} {order}", (1,), {}, "a {b} 1"),
        ("{order}…{to}", ("x…y", 1), {}, "x%E2%80%A6y…1"),
        ("nightly", (1,), {}, "nightly"),
        (lambda order, *rest, **more: f"own:{order}", (1, 2), {"fast": True}, "own:1"),
    ],
)
def test_a_call_has_a_name(template: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> None:
    assert named(template, *args, **kwargs) == name


@pytest.mark.parametrize(
    ("template", "error", "says"),
    [
        ("order:{ordr}", ValueError, "no argument 'ordr'.*it has: order, to"),
        ("order:{}", ValueError, "without a name"),
        ("order:{0}", ValueError, "without a name"),
        ("order:{order", ValueError, "no format string"),
        ("order:{order!x}", ValueError, "not supported"),
        ("order:{order:{to}}", ValueError, "not supported"),
        ("{order}{to}", ValueError, "separator"),
        ("{order}and{to}", ValueError, "separator"),
        ("{order}%{to}", ValueError, "separator"),
        ("", ValueError, "empty"),
        (7, TypeError, "str or a function"),
    ],
)
def test_a_template_that_cannot_work_is_refused_early(template: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        CallName(template, ship, None)


def test_what_only_the_call_can_show() -> None:
    with pytest.raises(TypeError, match=r"no text of its own.*\{order.id\}"):
        named("order:{order}", object())
    with pytest.raises(TypeError, match="no text of its own"):
        named("order:{order}", [object()])
    with pytest.raises(ValueError, match="use a hash of it"):
        named("order:{order}", "x" * 600)
    with pytest.raises(TypeError, match="missing a required argument"):
        named("order:{order}")
    with pytest.raises(TypeError, match="must be a str"):
        named(lambda *_, **__: 7, 1)


TEXT = st.text(alphabet="ab:%3A/", max_size=6)


@given(TEXT, TEXT, TEXT, TEXT, st.sampled_from([":", "::", "/", ":a", "/%", ":3A"]))
def test_different_arguments_never_have_the_same_name(a: str, b: str, c: str, d: str, separator: str) -> None:
    template = f"x{{order}}{separator}{{to}}"
    assert (named(template, a, b) == named(template, c, d)) == ((a, b) == (c, d))


# --- the decorator -----------------------------------------------------------------------------------------------


async def coroutine(order: int) -> int:
    return order


def plain(order: int) -> int:
    return order


def generator(order: int) -> Iterator[int]:
    yield order


async def async_generator(order: int) -> AsyncIterator[int]:
    yield order


class Caller:
    async def __call__(self, order: int) -> int:
        return order


@pytest.mark.parametrize(
    "work", [coroutine, functools.partial(coroutine, order=1), Caller(), generator, async_generator, 7, Order]
)
def test_a_blocking_client_decorates_plain_functions_only(work: Any) -> None:
    with Client(Memory("names")) as client, pytest.raises(TypeError):
        client.synchronized("x")(work)


@pytest.mark.parametrize("work", [plain, generator, async_generator, 7, Order])
def test_an_asyncio_client_decorates_coroutine_functions_only(work: Any) -> None:
    client = AsyncClient(Memory("names"))
    with pytest.raises(TypeError):
        client.synchronized("x")(work)


@pytest.mark.parametrize("kind", [staticmethod, classmethod])
def test_the_order_of_decorators_matters(kind: Any) -> None:
    with Client(Memory("names")) as client, pytest.raises(TypeError, match=f"@{kind.__name__} above"):
        client.synchronized("x")(kind(plain))


def test_a_function_that_returns_a_coroutine_is_found_out() -> None:
    with Client(Memory("names")) as client:
        locked = client.synchronized("x")(lambda order: coroutine(order))
        with pytest.raises(TypeError, match="returned a coroutine"):
            locked(1)
        assert client.lock("x").acquire(blocking=False) is not None, "and the lock is free"


def test_functions_passed_to_blocking_primitives_are_plain() -> None:
    with Client(Memory("names")) as client:
        for refused in (
            lambda: client.once("k", ttl=1).run(coroutine, 1),
            lambda: client.versioned("k").update(coroutine),
            lambda: client.scheduled("k", at_least=1, at_most=1).run(coroutine, 1),
            lambda: client.cached("k", 1, Caller()),
        ):
            with pytest.raises(TypeError, match="coroutine function"):
                refused()


def test_the_hold_goes_where_it_is_declared() -> None:
    with Client(Memory("names")) as client:

        @client.synchronized("order:{order}", hold="hold")
        def locked(order: int, *, hold: Hold | None = None) -> tuple[str, int]:
            """Ship it."""
            assert hold is not None
            hold.raise_if_lost()
            return hold.name, hold.token

        first, second = locked(7), locked(order=7)
        assert first[0] == second[0] == "order:7"
        assert first[1] < second[1]
        assert (locked.__name__, locked.__doc__) == ("locked", "Ship it.")
        with pytest.raises(TypeError, match="leave it out"):
            locked(7, hold=None)
        for other in (plain, lambda hold: None):
            with pytest.raises(TypeError, match=r"keyword-only argument 'hold'"):
                client.synchronized("x", hold="hold")(other)
        with pytest.raises(ValueError, match="no argument 'hold'"):
            client.synchronized("x{hold}", hold="hold")(locked.__wrapped__)  # type: ignore[attr-defined]


def test_methods_are_named_by_themselves_and_may_call_each_other() -> None:
    with Client(Memory("names")) as client:

        class Account:
            def __init__(self, number: int) -> None:
                self.number = number

            @client.synchronized("account:{self.number}", timeout=1)
            def transfer(self) -> int:
                return self.balance() + 1

            @client.synchronized("account:{self.number}", timeout=1)
            def balance(self) -> int:
                info = client.inspect(f"account:{self.number}")
                assert info is not None
                return len(info.holders)

            @staticmethod
            @client.synchronized("accounts")
            def total() -> int:
                return 3

        assert Account(7).transfer() == 2
        assert Account.total() == 3


def test_options_are_checked_when_the_decorator_is_made() -> None:
    with Client(Memory("names")) as client, pytest.raises(ValueError, match="lease"):
        client.synchronized("x", lease=-1)


def typed(client: Client, other: AsyncClient) -> None:
    """Stand here for the type checkers: a decorated function keeps its type."""
    number: int = client.synchronized("x")(plain)(1)
    work = other.synchronized("x")(coroutine)(order=number)
    work.close()
    assert AsyncHold
