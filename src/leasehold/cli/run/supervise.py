"""The loop of ``run``: acquire the lock, start the command, stop it when the lock is lost, release at its end.

Theory of operation
-------------------
No command runs past the end of the last *confirmed* lease. Each successful renewal moves that end.

* Renewals fail until only the grace, at most a quarter of the lease, is left. Then the command gets SIGTERM, while it
  is still protected. At the end of the lease it gets SIGKILL.
* The store reports that the lock is gone (broken, evicted). Then the command gets SIGTERM at once. It gets SIGKILL
  after the grace, or at the end of the last confirmed lease, whichever is first.

`run` releases the lock only when it finds no process any more that the command started. The `guard` kills at the same
moment if this process is stopped or dies.
"""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from leasehold._runtimes.clock import boottime
from leasehold.cli.options import SIGNALLED, Exit
from leasehold.cli.output import complain, meta_text, printable, seconds, token_text
from leasehold.cli.run.guard import Guard, fork_guarded, guarded_store
from leasehold.cli.run.processes import Child, in_foreground
from leasehold.client import AsyncClient
from leasehold.errors import LeaseLost, StoreUnavailable
from leasehold.events import Event, InDoubt, Renewed
from leasehold.primitives.locks.hold import AsyncHold

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals that ask to end. They go to all processes that the command started, as signals of a terminal do."""

PASSED_ON = (*ENDING, signal.SIGUSR1, signal.SIGUSR2)

FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
"""Signals that a terminal sends to the whole foreground group by itself."""

NOTICE = 1 / 4  # part of the lease that is kept at most for stopping the command before the lease ends
KILL_AHEAD = 0.05  # seconds for a kill to take effect before the lease ends,
KILL_AHEAD_PART = 1 / 20  # and at most this part of the lease
CHECKS_PER_LEASE = 6
LONGEST_PAUSE = 1.0  # longest pause between two checks of the lease, in seconds


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of one run, under the names that the command line gives them; times in seconds."""

    name: str
    url: str  # may contain a password; the command gets it in its environment
    namespace: str
    argv: tuple[str, ...]
    wait: bool
    timeout: float | None  # how long to wait; None waits for ever
    lease: float
    fair: bool
    lock_delay: float
    meta: str | None
    max_hold: float | None
    grace: float
    taken_code: int  # exit code if another client holds the lock
    quiet: bool


def supervise(options: RunOptions) -> int:
    """Run the command under the lock; return the exit code."""
    grouped = not in_foreground()
    missing = _missing_program(options.argv[0])
    if missing is not None:
        return missing
    child, guard = fork_guarded(options.argv, grouped=grouped)
    with ThreadPoolExecutor(1) as printer:
        try:
            code = asyncio.run(Supervisor(options, child, guard, printer).run())
        finally:
            if child.ended() is None:  # it was not started, or we failed
                guard.kill_all()
                child.await_none_left()
            guard.dismiss()
            child.reap()
    if code == SIGNALLED + signal.SIGINT and not grouped:
        _die_by_interrupt()
    return code


def _missing_program(program: str) -> int | None:
    """Return the exit code if the program cannot be run, and print why; None if it can. Called before the acquire."""
    if shutil.which(program) is not None:
        return None
    if os.sep in program and os.path.exists(program):
        complain(f"cannot run {program!r}: permission denied, or a folder")
        return int(Exit.NOT_EXECUTABLE)
    complain(f"cannot run {program!r}: command not found")
    return int(Exit.NOT_FOUND)


def _die_by_interrupt() -> None:
    """End by SIGINT itself: a surrounding shell script continues after an exit code, but stops after Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)


class Supervisor:
    """One run of one command."""

    def __init__(self, options: RunOptions, child: Child, guard: Guard, printer: ThreadPoolExecutor) -> None:
        self._options = options
        self._child = child
        self._guard = guard
        self._printer = printer
        self._wake_up = asyncio.Event()
        self._waiting: asyncio.Task[object] | None = None  # the task that acquires, while it may be interrupted
        self._signalled: int | None = None
        self._running = False
        self._since = 0.0  # boot-time clock, when the lease began
        self._in_doubt = False  # whether the store did not confirm the last renewal
        self._kill_deadline = 0.0  # boot-time clock, just before the last confirmed lease ends
        self._kill_at: float | None = None  # set when the command was asked to stop because of the lock

    async def run(self) -> int:
        """Acquire the lock, run the command, release; return the exit code."""
        self._catch_signals()
        options = self._options
        store = guarded_store(options.url, self._guard.pid)
        try:
            async with AsyncClient(store, namespace=options.namespace, observer=self._observe) as client:
                hold = await self._acquire(client)
                if hold is not None:
                    code = self._start(hold)
                    return await self._release(hold, await self._ended(hold) if code is None else code)
                if self._signalled is not None:
                    return SIGNALLED + self._signalled
                await self._report_conflict(client)
                return options.taken_code
        finally:
            # The loop closes its pipe before it removes its handlers, and a signal in between prints a traceback.
            asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)
            for number in PASSED_ON:  # there is no process to pass them on to any more
                signal.signal(number, signal.SIG_IGN)

    # --- signals -----------------------------------------------------------------------------------------------

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in PASSED_ON:
            if signal.getsignal(number) is not signal.SIG_IGN:  # ignored by nohup or a shell's &: stays so
                loop.add_signal_handler(number, self._signal, number)
        loop.add_signal_handler(signal.SIGCHLD, self._wake_up.set)
        loop.add_reader(self._child.reports, self._read_reports)

    def _read_reports(self) -> None:
        self._child.ended()  # reads the pipe
        if self._child.unguarded:
            asyncio.get_running_loop().remove_reader(self._child.reports)  # from now on SIGCHLD reports its end
        self._wake_up.set()

    def _signal(self, number: int) -> None:
        if not self._running:
            if number in ENDING and self._signalled is None:
                self._signalled = number
                if self._waiting is not None:
                    self._waiting.cancel()
        elif number in FROM_TERMINAL and not self._child.grouped and in_foreground():
            return  # the terminal has sent it to the command already
        elif number in ENDING and self._child.grouped:
            self._child.signal_all(number)
        else:
            self._child.signal(number)

    def _observe(self, event: Event) -> None:
        match event:
            case InDoubt(remaining=remaining):
                self._in_doubt = True
                self._print(f"the store did not confirm the renewal; the lock is held for another {seconds(remaining)}")
            case Renewed():
                self._in_doubt = False
                self._print("the store confirms renewals again")

    def _print(self, text: str) -> None:
        """Print a line by a thread: the reader of standard error may have gone, or may not read for a while."""
        if not self._options.quiet:
            with suppress(RuntimeError):  # no further thread is permitted
                self._printer.submit(complain, text)

    # --- acquiring ---------------------------------------------------------------------------------------------

    async def _acquire(self, client: AsyncClient) -> AsyncHold | None:
        options = self._options
        lock = client.lock(
            options.name,
            fair=options.fair,
            lease=options.lease,
            lock_delay=options.lock_delay,
            meta=options.meta,
            max_hold=options.max_hold,
        )
        if self._signalled is not None:
            return None
        task = self._waiting = asyncio.current_task()
        try:
            return await lock.acquire(options.wait, options.timeout)
        except asyncio.CancelledError:
            if self._signalled is None or task is None:
                raise
            task.uncancel()
            return None
        except LeaseLost as error:
            raise StoreUnavailable(f"its answers are too slow: {error}") from None
        finally:
            self._waiting = None

    async def _report_conflict(self, client: AsyncClient) -> None:
        options = self._options
        why = "another client held it"
        with suppress(StoreUnavailable):
            info = await client.inspect(options.name)
            if info is not None and info.holders:
                holder = info.holders[0]
                meta = f", {meta_text(holder.meta)}" if holder.meta is not None else ""
                address = printable(holder.host) + (f":{holder.pid}" if holder.pid else "")
                left = "with no end" if holder.remaining == math.inf else f"for another {seconds(holder.remaining)}"
                why = f"held by {address} {left} ({token_text(holder.token)}{meta})"
        within = f" within {options.timeout:g} s" if options.wait and options.timeout is not None else ""
        self._print(f"could not acquire '{printable(options.name)}'{within}: {why}")

    # --- while the lock is held --------------------------------------------------------------------------------

    def _start(self, hold: AsyncHold) -> int | None:
        """Start the command; return an exit code if it was not started."""
        if self._signalled is not None:
            return SIGNALLED + self._signalled
        self._since = boottime() + hold.remaining - self._options.lease  # the request began; its reply may be late
        hold.on_lost(lambda error: self._wake_up.set())
        self._check(hold)
        refusal = self._child.start(
            {
                "LEASEHOLD_NAME": hold.name,
                "LEASEHOLD_TOKEN": str(hold.token),
                "LEASEHOLD_URL": self._options.url,
                "LEASEHOLD_NAMESPACE": self._options.namespace,
            }
        )
        self._running = True
        if refusal is None:
            return None
        complain(f"cannot run {self._options.argv[0]!r}: {refusal.strerror}")
        return int(Exit.NOT_FOUND if isinstance(refusal, FileNotFoundError) else Exit.NOT_EXECUTABLE)

    async def _ended(self, hold: AsyncHold) -> int:
        """Wait until the command has ended; return its exit code. After a failure of ours, end it first."""
        try:
            return await self._until_gone(hold)
        except BaseException:
            await self._kill_all()  # before the client is closed, and with that the lock is released
            raise

    async def _until_gone(self, hold: AsyncHold) -> int:
        """Wait until the command ends, and stop it if the lock ends first; return its exit code in a shell's form."""
        self._wake_up.clear()
        while (status := self._child.ended()) is None:
            pause = self._check(hold)
            if self._child.unguarded:
                self._child.kill_found()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake_up.wait()
            self._wake_up.clear()
        if self._kill_at is None and status == -signal.SIGKILL and boottime() >= self._kill_deadline:
            self._kill_at = self._kill_deadline  # the guard killed it
            self._print("`leasehold run` was stopped or stuck until the lease had nearly ended; the command was killed")
        if self._child.unguarded:
            self._print("the guard process was killed, and the command with it")
        if self._kill_at is not None or self._child.unguarded:
            await self._kill_all()
        return status if status >= 0 else SIGNALLED - status

    async def _kill_all(self) -> None:
        """Kill all processes that the command started, however it ended itself."""
        self._guard.kill_all()
        asyncio.get_running_loop().remove_reader(self._child.reports)
        await asyncio.to_thread(self._child.await_none_left)

    def _check(self, hold: AsyncHold) -> float:
        """Move the deadline, or stop the command, as the lease's state requires; return seconds to the next check."""
        self._guard.resume()
        now, left = boottime(), hold.remaining
        kill_deadline = now + left - min(KILL_AHEAD, self._options.lease * KILL_AHEAD_PART)
        if left > 0 and abs(kill_deadline - self._kill_deadline) > 0.001:
            self._kill_deadline = kill_deadline
            self._guard.kill_at(kill_deadline)
        notice = min(self._options.grace, self._options.lease * NOTICE)
        if self._kill_at is None and left <= notice:
            self._stop(hold, now)
        elif self._kill_at is not None and now >= self._kill_at:
            self._guard.kill_all()
            self._child.kill_found()
        pause = min(self._options.lease / CHECKS_PER_LEASE, LONGEST_PAUSE)
        event_in = left - notice if self._kill_at is None else self._kill_at - now
        return max(0.0, min(pause, event_in)) or pause

    def _stop(self, hold: AsyncHold, now: float) -> None:
        self._kill_at = min(now + self._options.grace, max(self._kill_deadline, now))
        try:
            hold.raise_if_lost()
            longest, why = self._options.max_hold, "the store confirms no renewal"
            if longest is not None and now >= self._since + longest and not self._in_doubt:
                why = f"--max-hold of {seconds(longest)} is over"
            self._print(f"the lock is about to be lost: {why}; the command is being stopped")
        except LeaseLost as error:
            self._print(f"{error}; the command is being stopped")
        self._child.signal_all(signal.SIGTERM)
        self._child.signal_all(signal.SIGCONT)  # a stopped command cannot handle SIGTERM

    async def _release(self, hold: AsyncHold, code: int) -> int:
        """Release after the command has ended; return the exit code of `run`."""
        lost = self._kill_at is not None
        try:
            if not await hold.release():
                self._print("the store did not confirm the release; the lock is free by the end of its lease")
        except LeaseLost as error:
            if not lost:
                self._print(f"{error}; the command had ended with code {code}, but part of its work was unprotected")
            lost = True
        return int(Exit.LOST) if lost else code
