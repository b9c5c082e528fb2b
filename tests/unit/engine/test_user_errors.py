"""Whatever a callback or an observer raises, it ends no thread or task of the client, and costs no other holder."""

from __future__ import annotations

import asyncio
import gc
import itertools
from asyncio import CancelledError
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, cast

import pytest

from leasehold import AsyncClient, AsyncHold, Client, LeaseLost
from leasehold._engine import lease
from leasehold._runtimes.manual import ManualAsyncioRuntime, ManualClock
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


class Stop(BaseException):
    """What a signal handler may raise; unlike the other two it does not leave an event loop."""


numbers = itertools.count()


class LeftLoop:
    """An event loop that an exit left as a client checked its leases, or the results of a batch of renewals."""

    def __init__(self, error: type[BaseException], where: str, how: str) -> None:
        self.clock, self.memory = ManualClock(), Memory(f"left loop {next(numbers)}")
        self.failing, self.told, self.holds = [error("stop")], list[str](), dict[str, AsyncHold]()
        self.where, self.how, self.heard, self.raised = where, how, asyncio.Event(), asyncio.Event()
        self.client, self.looker = self.client_of(self.fail if where == "observer" else None), self.client_of(None)
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(lambda *_: None)
        self.loop.run_until_complete(self.acquire())
        self.losing = self.loop.create_task(self.lose())
        with nullcontext() if error is Stop else pytest.raises(error, match="stop"):
            self.loop.run_until_complete(self.losing)
        assert not self.failing

    def client_of(self, observer: Callable[[Event], None] | None) -> AsyncClient:
        return AsyncClient(self.memory, runtime=ManualAsyncioRuntime(self.clock), observer=observer)

    def fail(self, what: object) -> None:
        if self.failing and isinstance(what, Lost | LeaseLost):
            self.raised.set()
            raise self.failing.pop()

    def hear(self, loss: LeaseLost) -> None:
        self.told.append(loss.name or "")
        self.heard.set()

    async def acquire(self) -> None:
        for name in ("a", "b", "kept"):
            fixed = self.how == "expired" and name != "kept"
            hold = await self.client.lock(name, lease=10.0 if fixed else 60.0, renew=not fixed).acquire()
            assert hold is not None
            self.holds[name] = hold
            if self.where == "callback":
                hold.on_lost(self.fail)
            hold.on_lost(self.hear)

    async def lose(self) -> None:
        if self.how == "broken":
            for name in "ab":
                assert await self.looker.force_release(name, self.holds[name].token)
        self.clock.advance(11.0 if self.how == "expired" else 21.0)
        await asyncio.wait_for(self.raised.wait(), SOON)

    async def hear_of(self, *names: str) -> None:
        async with asyncio.timeout(SOON):
            while len(self.told) < len(names):
                self.heard.clear()
                await self.heard.wait()
        assert sorted(self.told) == sorted(names)

    async def go_on(self) -> None:
        await self.hear_of("a", "b")
        for _ in range(3):
            self.clock.advance(25.0)
            await asyncio.sleep(0.1)
            self.holds["kept"].raise_if_lost()
        assert await self.looker.force_release("kept", self.holds["kept"].token)
        self.clock.advance(25.0)
        await self.hear_of("a", "b", "kept")

    async def close(self) -> None:
        self.losing.cancel()
        await asyncio.gather(self.client.close(), self.looker.close())


@pytest.mark.parametrize(
    ("where", "error"),
    [
        *((where, error) for where in ("callback", "observer") for error in (KeyboardInterrupt, Stop)),
        ("observer", SystemExit),  # that of a callback is logged
    ],
)
@pytest.mark.parametrize("how", ["expired", "broken"])
def test_a_program_that_goes_on_after_an_exit_in_its_event_loop_keeps_its_locks_and_hears_of_all_losses(
    error: type[BaseException], where: str, how: str
) -> None:
    left = LeftLoop(error, where, how)
    left.loop.run_until_complete(left.go_on())
    left.loop.run_until_complete(left.close())
    left.loop.close()


def test_an_event_loop_that_is_closed_after_an_exit_leaves_no_warning() -> None:
    """The watchdog was to go on, and has not begun again."""
    left = LeftLoop(KeyboardInterrupt, "callback", "expired")
    left.losing._log_destroy_pending = False  # type: ignore[attr-defined] # the exit has left it
    left.loop.close()
    del left
    gc.collect()
