"""Detects when a client of a run got no processor, from inside the client.

On an overloaded machine, a process may be ready to run and get no processor for seconds; a guest of a shared host loses
whole cores. A promise about time binds only a process that can run. So a thread of each client sleeps for a short time,
again and again. The stall is the extra time that a sleep takes, less the processor time that the client itself
used meanwhile. A client that delays itself, by a blocked event loop or by keeping the interpreter lock, uses the
processor and is not excused.

The scheduler serves each thread of a process separately. This thread may run while the thread that notifies holders of
their losses, an event loop's or the watchdog's, waits for a processor for half a second. Linux counts such waits for
each thread.

The same is true for the process of the run, which relays the bytes of its clients through its proxies.

The run itself must not count either: its clients write to files and to a guarded resource in the middle of their work.
On such a machine that may take long, so slow calls of this kind are recorded, too.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from leasehold_lab.history.journal import Journal

EVERY = 0.01
"""Seconds of a sleep."""

NOTICED = 0.01
"""The shortest stall, in seconds, that is recorded: every machine has shorter ones now and then."""

WATCHDOG = "leasehold-watchdog"
"""The thread of a blocking client that notifies holders of losses."""

SHORT_LIVED = ("leasehold-renew", "leasehold-close")
"""Its other threads that notify holders: after a renewal that reports a loss, and on close. They end soon after."""

E = TypeVar("E")
P = ParamSpec("P")
T = TypeVar("T")


def timed(call: Callable[P, T], now: Callable[[], float], late: Callable[[float], None]) -> Callable[P, T]:
    """Wrap a call of the run itself: pass its duration to ``late`` if it is too long."""

    def timed(*args: P.args, **options: P.kwargs) -> T:
        began = now()
        result = call(*args, **options)
        if (took := now() - began) > NOTICED:
            late(took)
        return result

    return timed


def waited_by_main() -> float:
    """Return for how many seconds the main thread, with its event loop, has waited for a processor; 0 if unknown."""
    return _waited(os.getpid())


def waited_by_watchdog() -> float:
    """Return for how many seconds the threads that notify holders of a blocking client have waited for a processor."""
    watchdogs = [each.native_id for each in threading.enumerate() if each.name == WATCHDOG]
    return sum(_waited(each) for each in watchdogs if each is not None) + CALLBACK_THREADS.waited


class CallbackThreads:
    """The waits of short-lived threads that call holders back: each is measured while it calls."""

    def __init__(self) -> None:
        self.waited = 0.0
        self._local = threading.local()

    def measure(self) -> None:
        """Add the time for which the calling thread, if it is one of them, has waited since its last measurement."""
        if threading.current_thread().name in SHORT_LIVED:
            waited = _waited(threading.get_native_id())
            self.waited += waited - getattr(self._local, "before", 0.0)
            self._local.before = waited


CALLBACK_THREADS = CallbackThreads()


def timed_callback(callback: Callable[[E], object]) -> Callable[[E], None]:
    """Wrap a callback for `Hold.on_lost`, so that `waited_by_watchdog` includes its thread."""

    def timed_callback(error: E) -> None:
        CALLBACK_THREADS.measure()
        callback(error)

    return timed_callback


def _waited(thread: int) -> float:
    """Return the second field of a thread's ``schedstat`` (Linux, ``Documentation/scheduler/sched-stats.rst``)."""
    try:
        return int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):  # the thread has ended, or this is not Linux, or a Linux that does not count
        return 0.0


def _no_wait() -> float:
    return 0.0


class StallDetector:
    """Records when its client got no processor.

    Args:
        journal: where stalls are recorded.
        now: reads the clock of the journal.
        used: returns the seconds of processor time that the process has used.
        sleep: sleeps for that many seconds.
        waited: returns for how many seconds the thread that notifies holders has waited for a processor.
        noticed: the longest stall, in seconds, that is not recorded; a history with very many takes long to check.
        every: seconds of a sleep; a stall ended during the last sleep, and is recorded as ending now.

    """

    def __init__(
        self,
        journal: Journal,
        now: Callable[[], float],
        used: Callable[[], float] = time.process_time,
        sleep: Callable[[float], None] = time.sleep,
        waited: Callable[[], float] = _no_wait,
        noticed: float = NOTICED,
        every: float = EVERY,
    ) -> None:
        self._journal = journal
        self._now = now
        self._used = used
        self._sleep = sleep
        self._waited = waited
        self._noticed = noticed
        self._every = every
        self._before = waited()
        self._over = False

    def start(self) -> None:
        """Probe until `stop`, or until the process ends."""
        threading.Thread(target=self._run, name="leasehold-verify-stalls", daemon=True).start()

    def stop(self) -> None:
        """Stop probing."""
        self._over = True

    def _run(self) -> None:
        while not self._over:
            self.probe()

    def probe(self) -> None:
        """Sleep once, and record the stall: the extra time of the sleep, or the wait of the notifying thread."""
        began, used = self._now(), self._used()
        self._sleep(self._every)
        late = self._now() - began - self._every
        waited = self._waited()  # Linux counts a wait when it has ended
        before, self._before = self._before, waited
        held_up = max(late - (self._used() - used), waited - before)
        if held_up > self._noticed:
            self._journal.held_up(held_up)
