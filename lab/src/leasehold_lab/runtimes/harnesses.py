"""Harnesses: run the same ``async def`` test body blocking, under asyncio, or in virtual time.

How to use it
-------------
Write the body once, as a coroutine function that takes a `Harness`, and run it in each harness::

    async def body(harness: Harness) -> None:
        async with harness.client("memory:") as locks:
            hold = await locks.lock("stock:42").acquire(timeout=1)
            job = harness.spawn(lambda: locks.lock("stock:42").acquire(timeout=0.1))
            assert await job.result() is None
            await hold.release()

    @pytest.mark.parametrize("harness", [BlockingHarness(), AsyncioHarness(), SimulatedHarness(seed=1)], ids=str)
    def test_it(harness): harness.run(body)

What a harness offers:

* ``client(where, **options)``: a client of the store at a URL, or of an `Opener`. It has the methods of `AsyncClient`,
  and all are awaited. In the blocking harness it is a `sync_facade` of the public `Client`. It is closed at the end
  of ``run``.
* ``spawn(work)``: runs ``work()`` in a thread or task of its own and returns a `Job`. ``await job.join(timeout)``
  returns whether it ended, ``await job.result()`` returns its result or raises its error, ``job.cancel()`` cancels it.
  An error that was not retrieved is raised at the end of ``run``.
* ``gather(*coroutines)``: runs all at once; returns the results in order, or raises the first error when all ended.
* ``sleep(seconds)``, ``now()``: the harness's time. ``event()``: a flag with ``set()`` and ``await wait(timeout)``.
* ``cancels``: whether a job can be cancelled. A thread cannot.
* ``run(body)``: runs ``body(harness)`` to its end and returns its result.
"""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar, cast

from leasehold._model import DRIFT
from leasehold._runtimes.aio import AsyncioRuntime
from leasehold._runtimes.base import Runtime, Signal, finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.client import AsyncClient, Client
from leasehold.errors import Unsupported
from leasehold.store_api import Opener
from leasehold.stores import registry
from leasehold.stores.memory import Memory
from leasehold_lab.faulty_store import Faulty
from leasehold_lab.runtimes.network import InVirtualTime, Network
from leasehold_lab.runtimes.simulated import SimulatedRuntime
from leasehold_lab.runtimes.sync_facade import as_program, sync_facade
from leasehold_lab.runtimes.virtual import Machine, Scheduler

T = TypeVar("T")

ENDS_WITHIN = 2.0
"""Seconds for which ``run`` waits for its jobs after it has closed the clients."""


class Job(Generic[T]):
    """A thread or task that runs alongside the body. Only one waiter at a time."""

    def __init__(self, runtime: Runtime) -> None:
        self._end = runtime.signal()
        self._seen = False
        self._result: T | None = None
        self._error: BaseException | None = None
        self.cancel: Callable[[], object] = _cannot_cancel

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        """Run to the end, and keep the result or the error."""
        try:
            self._result = await work()
        except BaseException as error:  # kept for `result` and `exception`, cancellation too
            self._error = error
        finally:
            self._end.set()

    def done(self) -> bool:
        """Return whether it ended."""
        return self._end.is_set()

    async def join(self, timeout: float | None = None) -> bool:
        """Wait for the end, at most ``timeout`` seconds; return whether it ended."""
        return await self._end.wait(timeout)

    async def result(self) -> T:
        """Wait for the end; return the result or raise the error."""
        await self._end.wait(None)
        error = self.exception()
        if error is not None:
            raise error
        return cast(T, self._result)

    def exception(self) -> BaseException | None:
        """Return the error with which it ended; None if there is none yet."""
        self._seen = True
        return self._error

    def unretrieved(self) -> BaseException | None:
        """Return an error that was not retrieved; a cancellation does not count."""
        return None if self._seen or not isinstance(self._error, Exception) else self._error


class Harness(ABC):
    """See the top of this file."""

    name = ""
    cancels = True
    runtime: Runtime

    def __init__(self) -> None:
        self._clients: list[AsyncClient] = []
        self._jobs: list[Job[Any]] = []

    def client(self, where: str | Opener = "memory:", **options: Any) -> AsyncClient:
        """Make a client of the store at a URL or of an opener; it is closed at the end of `run`."""
        client = self._client(registry.opener(where) if isinstance(where, str) else where, **options)
        self._clients.append(client)
        return client

    def clients(self) -> list[AsyncClient]:
        """Return the clients that were made by this harness."""
        return list(self._clients)

    def spawn(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Job[T]:
        """Run ``work()`` in a thread or task of its own."""
        job: Job[T] = Job(self.runtime)
        self._jobs.append(job)
        self._start(job, work)
        return job

    async def gather(self, *work: Coroutine[Any, Any, T]) -> list[T]:
        """Run all at once; return the results, or raise the first error when all have ended."""
        results = await self.runtime.gather(*work)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return cast(list[T], results)

    async def sleep(self, seconds: float) -> None:
        """Sleep in the harness's time."""
        await self.runtime.sleep(seconds)

    def now(self) -> float:
        """Return the harness's clock in seconds."""
        return self.runtime.now()

    def event(self) -> Signal:
        """Make a flag that one thread or task may wait for."""
        return self.runtime.signal()

    @abstractmethod
    def run(self, body: Callable[[Harness], Coroutine[Any, Any, T]]) -> T:
        """Run ``body(self)`` to its end."""

    @abstractmethod
    def _client(self, opener: Opener, **options: Any) -> AsyncClient: ...

    @abstractmethod
    def _start(self, job: Job[T], work: Callable[[], Coroutine[Any, Any, T]]) -> None: ...

    async def _live(self, body: Callable[[Harness], Coroutine[Any, Any, T]]) -> T:
        self._clients, self._jobs = [], []
        try:
            result = await body(self)
        finally:
            for harness in self._parts():
                for client in harness._clients:
                    await client.close()
            jobs = [job for harness in self._parts() for job in harness._jobs]
            for job in jobs:
                if not await job.join(ENDS_WITHIN) and self.cancels:
                    job.cancel()
        for job in jobs:
            error = job.unretrieved()
            if error is not None:
                raise error
        return result

    def _parts(self) -> list[Harness]:
        """Return the parts that are closed with this harness."""
        return [self]

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


class BlockingHarness(Harness):
    """Threads, the public `Client`, real time."""

    name = "blocking"
    cancels = False

    def __init__(self) -> None:
        super().__init__()
        self.runtime = BlockingRuntime()

    def run(self, body: Callable[[Harness], Coroutine[Any, Any, T]]) -> T:
        """Run ``body(self)`` to its end, in the calling thread."""
        return finish(self._live(body))

    async def gather(self, *work: Coroutine[Any, Any, T]) -> list[T]:
        """Run all at once; return the results, or raise the first error when all have ended."""
        return await super().gather(*map(as_program, work))

    def _client(self, opener: Opener, **options: Any) -> AsyncClient:
        client: AsyncClient = sync_facade(Client(opener, **options))
        return client

    def _start(self, job: Job[T], work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self.runtime.spawn(lambda: as_program(job.run(work)), "job")


class AsyncioHarness(Harness):
    """Tasks of one event loop, the public `AsyncClient`, real time."""

    name = "asyncio"

    def run(self, body: Callable[[Harness], Coroutine[Any, Any, T]]) -> T:
        """Run ``body(self)`` to its end in an event loop of its own."""
        self.runtime = AsyncioRuntime()
        return asyncio.run(self._live(body))

    def _client(self, opener: Opener, **options: Any) -> AsyncClient:
        return AsyncClient(opener, **options)

    def _start(self, job: Job[T], work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        task = asyncio.create_task(job.run(work))
        job.cancel = task.cancel


class SimulatedMachine(Harness):
    """One process of a simulated harness: its clients and jobs share its clock, and stop and die with it."""

    def __init__(self, harness: SimulatedHarness, machine: Machine) -> None:
        super().__init__()
        self.harness = harness
        self.machine = machine
        self.runtime = self._simulated = SimulatedRuntime(harness.scheduler, machine)

    def run(self, body: Callable[[Harness], Coroutine[Any, Any, T]]) -> T:
        """Raise RuntimeError: only the harness runs."""
        raise RuntimeError("run the harness; spawn on a machine")

    def kill(self, *, after: int | None = None) -> None:
        """Kill the process now, or ``after`` that many more steps: nothing of it ever runs again.

        The store still executes its requests.
        """
        if after is not None:
            self.machine.last_step = self.machine.steps + after
            return
        self.harness.scheduler.note(self.machine.name, "is killed")
        self.machine.killed = True

    def stall(self, seconds: float) -> None:
        """Pause the process for that many seconds, as by SIGSTOP; time and other processes go on."""
        self.harness.scheduler.note(self.machine.name, f"is stopped for {seconds:.6f} s")
        until = self.harness.scheduler.time + seconds
        self.machine.stopped_until = max(self.machine.stopped_until, until)

    def _client(self, opener: Opener, **options: Any) -> AsyncClient:
        return AsyncClient(self.harness.remote(opener), runtime=self._simulated, **options)

    def _start(self, job: Job[T], work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        task = self._simulated.start(job.run(work), "job")
        job.cancel = task.cancel


class SimulatedHarness(Harness):
    """Tasks in virtual time, the public `AsyncClient`, the memory store behind a simulated network.

    The same seed gives the same history. ``machine(name)`` makes another process, with its own clock, that can be
    killed or paused. The harness itself runs on ``fate``, whose clock is true. ``trace()`` returns a log of all steps.
    """

    name = "simulated"

    def __init__(self, seed: int = 0, latency: tuple[float, float] = (0.0001, 0.001)) -> None:
        super().__init__()
        self.seed = seed
        self._latency = latency
        self._reset()

    def _reset(self) -> None:
        self._machines: list[SimulatedMachine] = []
        self.scheduler = Scheduler(self.seed)
        self._space = f"simulated-{next(_runs)}"
        self._server = SimulatedRuntime(self.scheduler, Machine("store"))
        self.fate = Machine("harness")
        self._main = SimulatedMachine(self, self.fate)
        self.runtime = self._main.runtime

    def machine(self, name: str, *, offset: float | None = None, rate: float | None = None) -> SimulatedMachine:
        """Make a process whose clock is ``offset`` seconds off and has this ``rate``; by default both are random."""
        chance = self.scheduler.random
        offset = chance.uniform(0.0, 1e5) if offset is None else offset
        rate = chance.uniform(1.0 - DRIFT, 1.0 + DRIFT) if rate is None else rate
        self._machines.append(SimulatedMachine(self, Machine(name, offset, rate)))
        return self._machines[-1]

    def remote(self, opener: Opener) -> Opener:
        """Put the network between the clients and the store of an opener; faults are injected on the client's side."""
        if isinstance(opener, Faulty):
            return opener.over(self.remote(opener.opener))
        if isinstance(opener, InVirtualTime):
            return opener
        if not isinstance(opener, Memory):
            raise Unsupported("a simulated harness needs a store that runs in virtual time: memory:, or a model")
        return Network(Memory(f"{self._space}/{opener.space}"), self._server, self._latency)

    def trace(self) -> str:
        """Return the log of the last run, a line for each step: the same text for the same seed and body."""
        return self.scheduler.written()

    def run(self, body: Callable[[Harness], Coroutine[Any, Any, T]]) -> T:
        """Run ``body(self)`` to its end in virtual time, from the beginning of the seed's history."""
        self._reset()
        return self.scheduler.run(self._main.machine, self._live(body))

    def _parts(self) -> list[Harness]:
        return [self, *(machine for machine in self._machines if not machine.machine.killed)]

    def _client(self, opener: Opener, **options: Any) -> AsyncClient:
        return self._main._client(opener, **options)

    def _start(self, job: Job[T], work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._main._start(job, work)

    def __str__(self) -> str:
        return f"{self.name}-{self.seed}"


_runs = itertools.count(1)
"""Numbers the runs of this process, so that no run uses the memory store of another."""


def _cannot_cancel() -> None:
    raise RuntimeError("a thread cannot be cancelled; see Harness.cancels")
