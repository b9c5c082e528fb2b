"""Worlds: places in which the same ``async def`` test body runs, blocking, under asyncio, or in simulated time.

How to use it
-------------
Write the body once, as a coroutine function that takes a `World`, and run it in each::

    async def body(world: World) -> None:
        async with world.client("memory:") as locks:
            hold = await locks.lock("stock:42").acquire(timeout=1)
            job = world.spawn(lambda: locks.lock("stock:42").acquire(timeout=0.1))
            assert await job.result() is None
            await hold.release()

    @pytest.mark.parametrize("world", [BlockingWorld(), AsyncioWorld(), SimulatedWorld(seed=1)], ids=str)
    def test_it(world): world.run(body)

What a world offers:

* ``client(where, **options)``: a client of the store at a URL, or of an `Opener`. It has the methods of `AsyncClient`,
  all awaited alike; in the blocking world it is a `Face` on the public `Client`. It is closed at the end of ``run``.
* ``spawn(work)``: runs ``work()`` in a thread or task of its own and returns a `Job`: ``await job.join(timeout)`` tells
  whether it ended, ``await job.result()`` waits for its result or raises its error, ``job.cancel()`` cancels it.
  An error that nobody asked for is raised at the end of ``run``.
* ``gather(*coroutines)``: runs all at once; returns the results in order, or raises the first error when all ended.
* ``sleep(seconds)``, ``now()``: the world's time. ``event()``: a flag: ``set()``, ``await event.wait(timeout)``.
* ``cancels``: whether a job can be cancelled. A thread cannot.
* ``run(body)``: runs ``body(world)`` to its end and returns its result.
"""

from __future__ import annotations

import asyncio
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from inspect import iscoroutinefunction
from typing import Any, Generic, TypeVar, cast

from leasehold.client import AsyncClient, Client
from leasehold.runtimes.aio import AsyncioRuntime
from leasehold.runtimes.base import Runtime, Signal, drive
from leasehold.runtimes.blocking import BlockingRuntime
from leasehold.stores import registry
from leasehold.stores.base import Opener

T = TypeVar("T")

LAST_WORDS = 2.0
"""Seconds for which ``run`` waits, after it closed the clients, for jobs that have not ended."""


class Job(Generic[T]):
    """Something that runs beside the body. One waits for it at a time."""

    def __init__(self, runtime: Runtime) -> None:
        self._end = runtime.signal()
        self._seen = False
        self._result: T | None = None
        self._error: BaseException | None = None
        self.cancel: Callable[[], object] = _nobody_cancels

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        """Run to the end and keep what came of it."""
        try:
            self._result = await work()
        except BaseException as error:  # kept for whoever asks, cancellation too
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
        """Return the error with which it ended, if it did."""
        self._seen = True
        return self._error

    def unheard(self) -> BaseException | None:
        """Return an error that nobody asked for; a cancellation is none."""
        return None if self._seen or not isinstance(self._error, Exception) else self._error


class World(ABC):
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
        """Sleep in the world's time."""
        await self.runtime.sleep(seconds)

    def now(self) -> float:
        """Return the world's clock in seconds."""
        return self.runtime.now()

    def event(self) -> Signal:
        """Make a flag that one thread or task may wait for."""
        return self.runtime.signal()

    @abstractmethod
    def run(self, body: Callable[[World], Coroutine[Any, Any, T]]) -> T:
        """Run ``body(self)`` to its end."""

    @abstractmethod
    def _client(self, opener: Opener, **options: Any) -> AsyncClient: ...

    @abstractmethod
    def _start(self, job: Job[T], work: Callable[[], Coroutine[Any, Any, T]]) -> None: ...

    async def _live(self, body: Callable[[World], Coroutine[Any, Any, T]]) -> T:
        self._clients, self._jobs = [], []
        try:
            result = await body(self)
        finally:
            for client in self._clients:
                await client.close()
            for job in self._jobs:
                if not await job.join(LAST_WORDS) and self.cancels:
                    job.cancel()
        for job in self._jobs:
            error = job.unheard()
            if error is not None:
                raise error
        return result

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


class BlockingWorld(World):
    """Threads, the public `Client`, real time."""

    name = "blocking"
    cancels = False

    def __init__(self) -> None:
        super().__init__()
        self.runtime = BlockingRuntime()

    def run(self, body: Callable[[World], Coroutine[Any, Any, T]]) -> T:
        """Run ``body(self)`` to its end, in the calling thread."""
        return drive(self._live(body))

    def _client(self, opener: Opener, **options: Any) -> AsyncClient:
        client: AsyncClient = face(Client(opener, **options))
        return client

    def _start(self, job: Job[T], work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self.runtime.spawn(lambda: job.run(work), "job")


class AsyncioWorld(World):
    """Tasks of one event loop, the public `AsyncClient`, real time."""

    name = "asyncio"

    def run(self, body: Callable[[World], Coroutine[Any, Any, T]]) -> T:
        """Run ``body(self)`` to its end in an event loop of its own."""
        self.runtime = AsyncioRuntime()
        return asyncio.run(self._live(body))

    def _client(self, opener: Opener, **options: Any) -> AsyncClient:
        return AsyncClient(opener, **options)

    def _start(self, job: Job[T], work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        task = asyncio.create_task(job.run(work))
        job.cancel = task.cancel


class Face:
    """A blocking object whose methods are awaited as those of its asyncio twin; ``with`` is ``async with``.

    What comes back from a method, if it has a twin itself, comes with a face.
    """

    def __init__(self, thing: Any) -> None:
        self.blocking = thing
        self._twin = _twin(type(thing))

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.blocking, name)
        if not callable(value):
            return _faced(value)
        if not iscoroutinefunction(getattr(self._twin, name)):
            return lambda *args, **options: _faced(value(*args, **options))

        async def call(*args: Any, **options: Any) -> Any:
            return _faced(value(*args, **options))

        return call

    async def __aenter__(self) -> Any:
        entered = self.blocking.__enter__()
        return self if entered is self.blocking else _faced(entered)

    async def __aexit__(self, *error: Any) -> Any:
        return self.blocking.__exit__(*error)

    def __repr__(self) -> str:
        return f"face({self.blocking!r})"


def face(thing: Any) -> Any:
    """Give a blocking client, lock or hold the look of its asyncio twin."""
    return Face(thing)


def _faced(value: Any) -> Any:
    return Face(value) if _twin(type(value)) is not None else value


def _twin(kind: type) -> type | None:
    """Return the asyncio class beside a blocking one: ``AsyncLock`` in the module of ``Lock``."""
    if not kind.__module__.startswith("leasehold."):
        return None
    twin: type | None = getattr(sys.modules[kind.__module__], f"Async{kind.__name__}", None)
    return twin


def _nobody_cancels() -> None:
    raise RuntimeError("a thread cannot be cancelled; see World.cancels")
