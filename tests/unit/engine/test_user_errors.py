"""Whatever a callback or an observer raises, it ends no thread or task of the client, and costs no other holder."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable
from typing import Any, cast

import pytest

from leasehold import Client, LeaseLost
from leasehold._engine import lease
from leasehold.events import Event, Lost
from leasehold.observability.combined import Combined
from leasehold.stores.memory import Memory
from leasehold_lab.conformance.case_context import LASTING
from leasehold_lab.runtimes.harnesses import Harness
from support.flavors import ASYNCIO, BLOCKING, both
from support.patience import until_in

LEASE = LASTING
SOON = 10.0


class Fails:
    """Raises when it is called with a loss, and counts these calls."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.count = 0

    def __call__(self, loss: object) -> None:
        if isinstance(loss, Lost) or not isinstance(loss, Event):
            self.count += 1
            raise self.error


def lose_one(harness: Harness, fails: Fails, *, observer: Callable[[Event], None] | None = None) -> None:
    """Lose one of two holds of a client; the other must be renewed, and its holder be notified of a later loss.

    Without ``observer``, what fails is a callback.
    """

    async def body(harness: Harness) -> None:
        memory = Memory(f"user errors {id(harness)}")
        client, other = harness.client(memory, observer=observer), harness.client(memory)
        lost, kept = [await client.lock(name, lease=LEASE).acquire() for name in ("lost", "kept")]
        assert lost is not None
        assert kept is not None
        told = list[object]()
        if observer is None:
            lost.on_lost(fails)
        kept.on_lost(told.append)
        assert await other.force_release("lost", lost.token)
        await until_in(harness, lambda: fails.count, SOON)
        await harness.sleep(2 * LEASE)
        kept.raise_if_lost()
        assert await other.force_release("kept", kept.token)
        await until_in(harness, lambda: told, SOON)

    harness.run(body)


@both
@pytest.mark.parametrize("error", [SystemExit(3), CancelledError(), GeneratorExit()], ids=repr)
def test_a_callback_that_raises_costs_no_other_holder(harness: Harness, error: BaseException) -> None:
    callback = Fails(error)
    lose_one(harness, callback)
    assert callback.count == 1


def test_a_callback_that_raises_a_keyboard_interrupt_in_a_thread_of_the_client_costs_no_other_holder() -> None:
    callback = Fails(KeyboardInterrupt())
    lose_one(BLOCKING, callback)
    assert callback.count == 1


def test_what_a_signal_handler_raises_in_a_callback_is_raised() -> None:
    class Interrupted(BaseException): ...

    with Client.from_url("memory:") as client:
        hold = client.lock("a").acquire()
        assert hold is not None
        assert client.force_release("a", hold.token)
        with pytest.raises(LeaseLost):
            hold.renew()
        with pytest.raises(Interrupted):
            hold.on_lost(Fails(Interrupted()))


@pytest.mark.parametrize("error", [SystemExit(143), KeyboardInterrupt()], ids=repr)
def test_an_exit_that_a_signal_handler_raises_in_a_callback_ends_the_program_when_the_others_were_called(
    error: BaseException,
) -> None:
    told = list[LeaseLost]()
    with Client.from_url("memory:") as client:
        hold = client.lock("a").acquire()
        assert hold is not None
        hold.on_lost(Fails(error))
        hold.on_lost(told.append)
        assert client.force_release("a", hold.token)
        with pytest.raises(type(error)):
            hold.renew()
        assert [loss.token for loss in told] == [hold.token]
        assert hold.lost
        with pytest.raises(LeaseLost):
            hold.release()


def test_an_interrupted_on_lost_keeps_no_lease_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupts(dict[Any, Any]):
        def setdefault(self, *args: Any) -> Any:
            super().setdefault(*args)
            raise KeyboardInterrupt

    made = Interrupts()
    monkeypatch.setattr(lease, "_made", made)
    with Client.from_url("memory:") as client, client.lock("a") as hold:
        with pytest.raises(KeyboardInterrupt):
            hold.on_lost(print)
        assert not made


@pytest.mark.parametrize(
    ("harness", "error"),
    [(BLOCKING, SystemExit(3)), (BLOCKING, CancelledError()), (ASYNCIO, CancelledError())],
    ids=repr,
)
@pytest.mark.parametrize("combined", [False, True])
def test_an_observer_that_raises_costs_no_holder(harness: Harness, error: BaseException, combined: bool) -> None:
    observer = Fails(error)
    lose_one(harness, observer, observer=Combined(observer) if combined else observer)
    assert observer.count == 2


@pytest.mark.parametrize("kind", ["lock", "multi_lock"])
def test_a_callback_that_would_never_run_is_refused(kind: str) -> None:
    async def never_awaited(error: object) -> None: ...

    with (
        Client.from_url("memory:") as client,
        client.lock("a") if kind == "lock" else client.multi_lock(["a", "b"]) as hold,
    ):
        for callback in (None, never_awaited):
            with pytest.raises(TypeError, match="a plain function is expected"):
                hold.on_lost(cast(Any, callback))


def test_an_exit_that_a_signal_handler_raises_in_an_observer_ends_the_program() -> None:
    with pytest.raises(SystemExit):
        Combined(Fails(SystemExit(143)))(Lost("a", "o", 1.0, 1.0, "memory:", "default", "mutex", 1, "it expired"))
