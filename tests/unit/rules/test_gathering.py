"""The blocking runtime does several pieces of work at once: what interrupts it, and what if it has no threads."""

from __future__ import annotations

import signal
import threading

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
    begun = threading.Barrier(works)

    async def work(number: int) -> None:
        begun.wait(10.0)
        if number == 0:
            signal.raise_signal(signal.SIGALRM)
            await runtime.sleep(0.1)  # in this frame, if it has the main thread
        await runtime.sleep(0.2)
        ended.append(number)

    def stop(number: int, frame: object) -> None:
        raise error("stop")

    before = signal.signal(signal.SIGALRM, stop)
    try:
        with pytest.raises(error, match="stop"):
            finish(runtime.gather(*map(work, range(works))))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert sorted(ended) == list(range(works)), "it has waited for them"


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
