"""The loop of ``run``: get the lock, start the command, keep both together, release when the command is gone.

Theory of operation
-------------------
No command runs past the last *confirmed* lease. While renewals succeed, that moment moves on. When they have failed for
so long that no more than the grace (at most a quarter of the lease) is left, the command is told to stop by SIGTERM,
still protected; at the end of the lease it is killed. When the store says that the lock is gone (broken, evicted),
SIGTERM comes at once, and SIGKILL after the grace or at the end of the lease that was confirmed last, whichever is
first. Then the lock is left only when nothing is found any more that the command started. The `guard` holds to the same
moment should this process be stopped or die.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from contextlib import suppress

from leasehold._runtimes.clock import boottime
from leasehold.cli.codes import SIGNALLED, Exit
from leasehold.cli.output import complain, meta_text, printable, seconds, who
from leasehold.cli.run.guard import Guard, fork_guarded
from leasehold.cli.run.order import Order
from leasehold.cli.run.processes import Child, in_foreground
from leasehold.cli.store_url import guarded
from leasehold.client import AsyncClient
from leasehold.errors import LeaseLost, StoreUnavailable
from leasehold.events import Event, InDoubt, Renewed
from leasehold.primitives.locks.hold import AsyncHold

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals that ask to end: they go to all that the command started, as from a terminal."""

PASSED_ON = (*ENDING, signal.SIGUSR1, signal.SIGUSR2)

FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
"""Signals that a terminal sends to the whole foreground group by itself."""

NOTICE = 1 / 4
"""Part of the lease that is kept at most for stopping the command before the lease ends."""

KILL_AHEAD, KILL_AHEAD_PART = 0.05, 1 / 20
"""Seconds, and at most this part of the lease, for a kill to take effect before the lease ends."""

LOOKS_PER_LEASE = 6
LONGEST_NAP = 1.0
"""Seconds between two looks at the lease, at most."""


def supervise(order: Order) -> int:
    """Run the command under the lock; return the exit code."""
    grouped = not in_foreground()
    code = _findable(order.argv[0])
    if code is not None:
        return code
    child, guard = fork_guarded(order.argv, grouped=grouped)
    try:
        code = asyncio.run(Supervisor(order, child, guard).run())
    finally:
        if child.ended() is None:  # not started, or a fault of ours
            guard.kill_all()
            child.await_none_left()
        guard.dismiss()
        child.reap()
    if code == SIGNALLED + signal.SIGINT and not grouped:
        _die_by_interrupt()
    return code


def _findable(program: str) -> int | None:
    """Complain before anything is locked if the program cannot be run; return the code for it."""
    if shutil.which(program) is not None:
        return None
    if os.sep in program and os.path.exists(program):
        complain(f"cannot run {program!r}: permission denied, or a folder")
        return int(Exit.NOT_EXECUTABLE)
    complain(f"cannot run {program!r}: command not found")
    return int(Exit.NOT_FOUND)


def _die_by_interrupt() -> None:
    """End by SIGINT itself: a shell script around us goes on after an exit code, but stops after Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)


class Supervisor:
    """One run of one command."""

    def __init__(self, order: Order, child: Child, guard: Guard) -> None:
        self._order = order
        self._child = child
        self._guard = guard
        self._news = asyncio.Event()
        self._waiting: asyncio.Task[object] | None = None  # the task that acquires, while it may be interrupted
        self._signalled: int | None = None
        self._running = False
        self._gone_by = 0.0  # boot-time clock: when to kill at the latest, for the end of the last confirmed lease
        self._kill_at: float | None = None  # set when the command has been told to stop because of the lock

    async def run(self) -> int:
        """Acquire, run, release; return the exit code."""
        self._catch_signals()
        order = self._order
        store = guarded(order.url, self._guard.pid)
        async with AsyncClient(store, namespace=order.namespace, observer=self._observe) as client:
            hold = await self._acquire(client)
            if hold is not None:
                return await self._run_held(hold)
            if self._signalled is not None:
                return SIGNALLED + self._signalled
            await self._say_taken(client)
            return order.taken_code

    # --- signals -----------------------------------------------------------------------------------------------

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in PASSED_ON:
            if signal.getsignal(number) is not signal.SIG_IGN:  # ignored by nohup or a shell's &: stays so
                loop.add_signal_handler(number, self._signal, number)
        loop.add_signal_handler(signal.SIGCHLD, self._news.set)
        loop.add_reader(self._child.tidings, self._hear)

    def _hear(self) -> None:
        self._child.ended()  # reads what there is
        if self._child.unguarded:
            asyncio.get_running_loop().remove_reader(self._child.tidings)  # from now on SIGCHLD tells
        self._news.set()

    def _signal(self, number: int) -> None:
        if not self._running:
            if number in ENDING and self._signalled is None:
                self._signalled = number
                if self._waiting is not None:
                    self._waiting.cancel()
        elif number in FROM_TERMINAL and not self._child.grouped and in_foreground():
            return  # the command has it from the terminal already
        elif number in ENDING and self._child.grouped:
            self._child.signal_all(number)
        else:
            self._child.signal(number)

    def _observe(self, event: Event) -> None:
        match event:
            case InDoubt(remaining=remaining):
                self._say(f"the store did not confirm the lock; it is surely held for {seconds(remaining)} more")
            case Renewed():
                self._say("the store confirms the lock again")

    def _say(self, text: str) -> None:
        if not self._order.quiet:
            complain(text)

    # --- getting it --------------------------------------------------------------------------------------------

    async def _acquire(self, client: AsyncClient) -> AsyncHold | None:
        order = self._order
        lock = client.lock(
            order.name,
            fair=order.fair,
            lease=order.lease,
            lock_delay=order.lock_delay,
            meta=order.meta,
            max_hold=order.max_hold,
        )
        if self._signalled is not None:
            return None
        task = self._waiting = asyncio.current_task()
        try:
            hold = await lock.acquire(order.wait, order.timeout)
        except asyncio.CancelledError:
            if self._signalled is None or task is None:
                raise
            task.uncancel()
            return None
        except LeaseLost as error:
            raise StoreUnavailable(f"it answers too slowly: {error}") from None
        finally:
            self._waiting = None
        return hold

    async def _say_taken(self, client: AsyncClient) -> None:
        by = ""
        with suppress(StoreUnavailable):
            info = await client.inspect(self._order.name)
            if info is not None and info.holders:
                holder = info.holders[0]
                meta = f" ({meta_text(holder.meta)})" if holder.meta is not None else ""
                by = f"; held by {who(holder)}, token {holder.token}{meta}"
        self._say(f"not acquired: someone else has {printable(self._order.name)}{by}")

    # --- while it is held --------------------------------------------------------------------------------------

    async def _run_held(self, hold: AsyncHold) -> int:
        code = self._start(hold)
        if code is None:
            code = await self._until_gone(hold)
        return await self._release(hold, code)

    def _start(self, hold: AsyncHold) -> int | None:
        """Start the command; return an exit code if that is not to be."""
        if self._signalled is not None:
            return SIGNALLED + self._signalled
        hold.on_lost(lambda error: self._news.set())
        self._look(hold)
        refusal = self._child.start(self._environment(hold))
        self._running = True
        if refusal is None:
            return None
        complain(f"cannot run {self._order.argv[0]!r}: {refusal.strerror}")
        return int(Exit.NOT_FOUND if isinstance(refusal, FileNotFoundError) else Exit.NOT_EXECUTABLE)

    def _environment(self, hold: AsyncHold) -> dict[str, str]:
        return {
            "LEASEHOLD_NAME": hold.name,
            "LEASEHOLD_TOKEN": str(hold.token),
            "LEASEHOLD_URL": self._order.url,
            "LEASEHOLD_NAMESPACE": self._order.namespace,
        }

    async def _until_gone(self, hold: AsyncHold) -> int:
        """Wait for the command's end, stopping it when the lock ends first; return its exit code as shells have it."""
        while True:
            self._news.clear()
            status = self._child.ended()
            if status is not None:
                break
            nap = self._look(hold)
            if self._child.unguarded:
                self._child.kill_found()
            with suppress(TimeoutError):
                async with asyncio.timeout(nap):
                    await self._news.wait()
        if self._kill_at is None and status == -signal.SIGKILL and boottime() >= self._gone_by:
            self._kill_at = self._gone_by  # it was the guard
            self._say("stopped or stuck for so long that the lock could not be kept; the command was killed")
        if self._child.unguarded:
            self._say("the process that guards the command was killed, and the command with it")
        if self._kill_at is not None or self._child.unguarded:
            await self._none_left()
        return status if status >= 0 else SIGNALLED - status

    async def _none_left(self) -> None:
        """Have all killed that the command started, whatever its own end was."""
        self._guard.kill_all()
        asyncio.get_running_loop().remove_reader(self._child.tidings)
        await asyncio.to_thread(self._child.await_none_left)

    def _look(self, hold: AsyncHold) -> float:
        """Do what the lease's state calls for; return the seconds until the next look."""
        now, left = boottime(), hold.remaining
        gone_by = now + left - min(KILL_AHEAD, self._order.lease * KILL_AHEAD_PART)
        if left > 0 and abs(gone_by - self._gone_by) > 0.001:
            self._gone_by = gone_by
            self._guard.kill_at(gone_by)
        notice = min(self._order.grace, self._order.lease * NOTICE)
        if self._kill_at is None and left <= notice:
            self._stop(hold, now)
        elif self._kill_at is not None and now >= self._kill_at:
            self._guard.kill_all()
            self._child.kill_found()
        nap = min(self._order.lease / LOOKS_PER_LEASE, LONGEST_NAP)
        event_in = left - notice if self._kill_at is None else self._kill_at - now
        return max(0.0, min(nap, event_in)) or nap

    def _stop(self, hold: AsyncHold, now: float) -> None:
        self._kill_at = min(now + self._order.grace, max(self._gone_by, now))
        try:
            hold.raise_if_lost()
            self._say("the lock is about to be lost: the store confirms no renewal; stopping the command")
        except LeaseLost as error:
            self._say(f"{error}; stopping the command")
        self._child.signal_all(signal.SIGTERM)
        self._child.signal_all(signal.SIGCONT)  # a stopped command could not act on it

    async def _release(self, hold: AsyncHold, code: int) -> int:
        """Release after the command is gone; return the exit code of it all."""
        lost = self._kill_at is not None
        try:
            if not await hold.release():
                self._say("the store did not confirm the release; the lock is free by the end of its lease")
        except LeaseLost as error:
            if not lost:
                self._say(f"{error}; the command had ended with code {code}, but not all of it was protected")
            lost = True
        return int(Exit.LOST) if lost else code
