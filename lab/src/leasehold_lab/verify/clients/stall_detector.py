"""When a client of a run got no turn of the machine, by what it sees itself.

On a machine with more to do than it has cores for, a process may be ready to run and not be let for seconds; a guest of
a shared host loses whole cores. A promise about time binds those who can run. So a thread of each client sleeps for a
short, fixed time, again and again. What a sleep takes longer, less the processor time that the client itself used
meanwhile, is time in which it was kept from running. A client that holds itself up, by an event loop that is blocked or
a lock of the interpreter that is not given away, uses the processor and is not excused.

Threads of one process get their turns one by one: this one may have its own while the one that tells holders of their
losses, an event loop's or the watchdog's, waits for a processor for half a second. Linux counts that, for each thread.

So it is with the process that steers the run, while bytes of clients pass through its proxies.

Nor does the run itself hold anybody up: its clients write to files and to a guarded resource, each time in the middle
of their work, and on such a machine that may take long. What takes long of it is written down, too.
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
"""Seconds that are written down: less is what every machine takes for this and that."""

TELLS = "leasehold-watchdog"
"""The thread of a blocking client that tells of losses."""

CALLS = ("leasehold-renew", "leasehold-close")
"""Threads of it that do so, too, when they have heard that a lock is gone, or its client is closed, and end."""

E = TypeVar("E")
P = ParamSpec("P")
T = TypeVar("T")


def timed(call: Callable[P, T], now: Callable[[], float], late: Callable[[float], None]) -> Callable[P, T]:
    """Return a call of the run's own that says how long it took, if that is too long."""

    def timed(*args: P.args, **options: P.kwargs) -> T:
        began = now()
        result = call(*args, **options)
        if (took := now() - began) > NOTICED:
            late(took)
        return result

    return timed


def waited_by_main() -> float:
    """Return the seconds for which the main thread, with its event loop, has waited for a processor; 0 if unknown."""
    return _waited(os.getpid())


def waited_by_watchdog() -> float:
    """Return the seconds for which watchdogs, and those who called holders, have waited for a processor."""
    watchdogs = [each.native_id for each in threading.enumerate() if each.name == TELLS]
    return sum(_waited(each) for each in watchdogs if each is not None) + CALLERS.waited


class Callers:
    """Threads that call holders back and are gone soon after: each is asked, as it calls, how long it has waited."""

    def __init__(self) -> None:
        self.waited = 0.0
        self._of_this = threading.local()

    def ask(self) -> None:
        """Add what the calling thread, if it is one of them, has waited since it was asked last."""
        if threading.current_thread().name in CALLS:
            waited = _waited(threading.get_native_id())
            self.waited += waited - getattr(self._of_this, "before", 0.0)
            self._of_this.before = waited


CALLERS = Callers()


def called_back(callback: Callable[[E], object]) -> Callable[[E], None]:
    """Make a callback for `Hold.on_lost` of which `waited_by_watchdog` knows."""

    def called_back(error: E) -> None:
        CALLERS.ask()
        callback(error)

    return called_back


def _waited(thread: int) -> float:
    """Return the second number of what ``Documentation/scheduler/sched-stats.rst`` of Linux says of a thread."""
    try:
        return int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):  # it has ended; or this is no Linux, or one that does not count
        return 0.0


def _nobody_waits() -> float:
    return 0.0


class Pulse:
    """Writes down when its client got no turn.

    Args:
        journal: where it is written down.
        now: the clock of the journal.
        used: seconds of processor time that the process has used.
        sleep: for so many seconds.
        waited: seconds for which the thread that tells of losses has waited for a processor.
        noticed: seconds that are too few to be written down; a history with very many moments takes long to check.
        every: seconds of a sleep; what is written down ended within the last of them, and is said to have ended now.

    """

    def __init__(
        self,
        journal: Journal,
        now: Callable[[], float],
        used: Callable[[], float] = time.process_time,
        sleep: Callable[[float], None] = time.sleep,
        waited: Callable[[], float] = _nobody_waits,
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
        """Beat until `stop`, or the end of the process."""
        threading.Thread(target=self._run, name="leasehold-verify-pulse", daemon=True).start()

    def stop(self) -> None:
        """Beat no more."""
        self._over = True

    def _run(self) -> None:
        while not self._over:
            self.beat()

    def beat(self) -> None:
        """Sleep once, and write down what it took too long for others, or how long the other thread had to wait."""
        began, used = self._now(), self._used()
        self._sleep(self._every)
        late = self._now() - began - self._every
        waited = self._waited()  # counted when the wait has ended
        before, self._before = self._before, waited
        held_up = max(late - (self._used() - used), waited - before)
        if held_up > self._noticed:
            self._journal.held_up(held_up)
