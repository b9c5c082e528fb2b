"""The blocking runtime does several pieces of work at once: what interrupts it, and what if it has no threads."""

from __future__ import annotations

import signal
import threading
from inspect import CORO_CLOSED, getcoroutinestate

import pytest

from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime


class TimeLimit(Exception):
    """As the soft time limit of Celery."""


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, TimeLimit])
@pytest.mark.parametrize("works", [1, 3])
def test_what_a_signal_handler_raises_while_threads_are_gathered_is_raised_and_nothing_is_left(
    error: type[BaseException], works: int
) -> None:
    """It is no outcome of the work: whoever gathers would take the store for unavailable, and go on."""
    runtime, ended = BlockingRuntime(), list[int]()
    begun, interrupted, main = threading.Barrier(works), threading.Event(), threading.main_thread().ident
    assert main is not None

    async def work(number: int) -> None:
        begun.wait(10.0)
        if number == 0:
            await runtime.sleep(0.05)  # the main thread waits for this one by now
            signal.pthread_kill(main, signal.SIGALRM)  # raises in this frame, if it has the main thread
        if interrupted.wait(10.0):
            await runtime.sleep(0.1 * (number + 1))
            ended.append(number)

    def stop(number: int, frame: object) -> None:
        interrupted.set()
        raise error("stop")

    before = signal.signal(signal.SIGALRM, stop)
    try:
        with pytest.raises(error, match="stop"):
            finish(runtime.gather(*map(work, range(works))))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert sorted(ended) == list(range(works)), "it has waited for them"


@pytest.mark.parametrize("begun", [0, 1, 2])
def test_work_that_had_not_begun_when_a_signal_handler_raised_never_begins(
    begun: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler interrupts the start of a thread, which runs only after the gathering has ended."""
    done, starting, start = list[int](), list[threading.Thread](), threading.Thread.start

    async def work(number: int) -> None:
        done.append(number)

    def interrupted(thread: threading.Thread) -> None:
        starting.append(thread)
        if len(starting) > begun:
            raise TimeLimit("stop")
        start(thread)

    works = [work(number) for number in range(3)]
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(TimeLimit, match="stop"):
        finish(BlockingRuntime().gather(*works))
    monkeypatch.undo()
    assert [getcoroutinestate(each) for each in works] == 3 * [CORO_CLOSED], "none is left that was never awaited"
    late = starting[begun]
    late.start()
    late.join()
    assert sorted(done) == list(range(begun))


def test_work_is_gathered_without_threads_if_none_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in `atexit` on some versions of Python."""

    def fails(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    async def give(value: int) -> int:
        return 1 // value

    monkeypatch.setattr(threading.Thread, "start", fails)
    zero, one, two = finish(BlockingRuntime().gather(give(0), give(1), give(2)))
    assert isinstance(zero, ZeroDivisionError)
    assert (one, two) == (1, 0)
