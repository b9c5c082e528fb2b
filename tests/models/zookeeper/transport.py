"""The session of the ZooKeeper store over a simulated network: the store, and its requests, are the shipped ones.

kazoo's threads and its bytes have no place in virtual time. So what keeps a session here is this file, which does as
kazoo does: one connection at a time, another member when it ends, a ping each third of the timeout, a connection given
up after two thirds without a word; requests that were under way then have failed, and all watches ring.
"""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from leasehold._runtimes.base import Job, Runtime, Signal
from leasehold.errors import StoreUnavailable, Unsupported
from leasehold.stores._common.drivers import Answer
from leasehold.stores.zookeeper.connection.errors import no_session, to_error
from leasehold.stores.zookeeper.connection.requests import Request, Requests
from leasehold.stores.zookeeper.connection.session import LinkEvent, Session, Transport
from leasehold.stores.zookeeper.connection.settings import Settings
from leasehold.stores.zookeeper.store import ZooKeeperStore
from leasehold_lab.runtimes.network import InVirtualTime
from leasehold_lab.runtimes.simulated import SimulatedRuntime
from models.net import Connection
from models.zookeeper.ensemble import Hello, Member
from models.zookeeper.tree import Failed

_errors: Any = importlib.import_module("kazoo.exceptions")

PORT = 2181
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds before another member is tried, as the transport tells kazoo."""

CLOSE_WITHIN = 1.5


class Event(NamedTuple):
    """What a watch tells; without a path that the connection was lost."""

    path: str | None


@dataclass(frozen=True)
class SimulatedZooKeeper(InVirtualTime):
    """Opens the store on a model of an ensemble, with sessions of ``timeout`` seconds."""

    members: Sequence[Member]
    timeout: float

    def open(self, runtime: Runtime, namespace: str) -> ZooKeeperStore:
        """Open the store for one client."""
        if not isinstance(runtime, SimulatedRuntime):
            raise Unsupported("a model of ZooKeeper serves clients of simulated harnesses only")
        hosts = tuple((member.machine.name, PORT) for member in self.members)
        settings = Settings(hosts, session_timeout=self.timeout)

        def make(hear: Callable[[LinkEvent], None]) -> Transport:
            return ModelTransport(runtime, settings, self.members, hear)  # type: ignore[return-value]

        return ZooKeeperStore(runtime, namespace, settings, "", make)


class _Question:
    """A request that was sent."""

    def __init__(self, request: Request, answered: Signal) -> None:
        self.request = request
        self.answered = answered
        self.value: Any = None
        self.error: BaseException | None = None

    def end(self, value: Any, error: BaseException | None) -> None:
        """Take the answer."""
        self.value, self.error = value, error
        self.answered.set()


class ModelTransport(Requests):
    """See `leasehold.stores.zookeeper.connection.session.Transport`."""

    def __init__(
        self,
        runtime: SimulatedRuntime,
        settings: Settings,
        members: Sequence[Member],
        hear: Callable[[LinkEvent], None],
    ) -> None:
        super().__init__(settings)
        self._runtime = runtime
        self._settings = settings
        self._members = members
        self._hear = hear
        self._line: Connection | None = None
        self._hello: tuple[int, float] | None = None
        self._asked: deque[_Question | None] = deque()  # None: a ping
        self._watchers: dict[tuple[str, str], dict[Callable[[Any], None], None]] = {}
        self._change = runtime.signal()
        self._waiting: dict[Signal, None] = {}
        self._job: Job | None = None
        self._heard = 0.0
        self._closed = False
        self._member = int(runtime.jitter() * len(members))
        self.session: Session | None = None
        self.up = False

    # --- requests ------------------------------------------------------------------------------------------------

    async def ask_all(self, requests: Sequence[Request], until: float) -> list[Any]:
        if not requests:
            return []
        await self._connected(until)
        line = self._line
        assert line is not None
        questions = [_Question(request, self._runtime.signal()) for request in requests]
        for question in questions:
            self._asked.append(question)
            line.send(question.request.form)
        if not await questions[-1].answered.wait(max(0.0, until - self._runtime.now())):
            raise StoreUnavailable("the model of ZooKeeper did not answer in time", unknown=True)
        return [self._read(question) for question in questions]

    def _read(self, question: _Question) -> Any:
        error = question.error
        if error is None:
            answer = question.request.read(question.value)
            if not isinstance(answer, BaseException):
                return answer
            error = answer
        meant = to_error(error, "the model")
        if isinstance(meant, Answer):
            return meant
        raise meant

    # --- the session ---------------------------------------------------------------------------------------------

    async def ready(self, until: float) -> Session:
        """Wait for a connection with a session and return that."""
        await self._connected(until)
        session = self.session
        if session is None:
            raise StoreUnavailable("the model of ZooKeeper: the session has expired")
        return session

    async def _connected(self, until: float) -> None:
        while not self.up:
            if self._closed:
                raise StoreUnavailable("the connection with ZooKeeper was closed")
            if self._job is None:
                self._job = self._runtime.spawn(self._keep, "session")
            wake_up = self._runtime.signal()
            self._waiting[wake_up] = None
            try:
                if not await wake_up.wait(max(0.0, until - self._runtime.now())):
                    raise no_session("", "the model")
            finally:
                self._waiting.pop(wake_up, None)

    async def _keep(self) -> None:
        """Have a connection, and another when it ends."""
        pause = FIRST_PAUSE
        while not self._closed:
            self._member += 1
            if await self._greet():
                pause = FIRST_PAUSE
                await self._ping()
            elif not self._closed:
                await self._runtime.sleep(pause * (0.5 + self._runtime.jitter() / 2))
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _greet(self) -> bool:
        """Connect to the next member; return whether there is a session."""
        member = self._members[self._member % len(self._members)]
        timeout = self._settings.session_timeout
        await self._runtime.sleep(2 * member.link(self._runtime.machine.name).latency[0])
        self._hello = None
        self._line = member.connect(self._runtime.machine, self._came, self._ended)
        if self._line is None:
            return False
        self._line.send(Hello(self.session.id if self.session else 0, timeout))
        until = self._runtime.now() + max(1.0, timeout / 6)
        while not self._greeted() and self._is_open():
            self._change.clear()
            if not await self._change.wait(max(0.0, until - self._runtime.now())):
                self._hang_up()
        hello: Any = self._hello
        if hello is None or not self._is_open():
            return False
        number, timeout = hello
        if not number:
            self._hang_up()
            self.session = None
            self._hear(LinkEvent.EXPIRED)
            return False
        self._heard = self._runtime.now()
        self.session, self.up = Session(number, timeout), True
        for wake_up in list(self._waiting):
            wake_up.set()
        self._hear(LinkEvent.UP)
        return True

    async def _ping(self) -> None:
        """Ping until the connection ends, or says nothing any more."""
        third = self._settings.session_timeout / 3
        while self._line is not None:
            self._change.clear()
            if not await self._change.wait(third) and (line := self._current()) is not None:
                if self._runtime.now() - self._heard >= 2 * third:
                    line.end()
                    return
                self._asked.append(None)
                line.send("ping")

    def _current(self) -> Connection | None:
        return self._line

    def _is_open(self) -> bool:
        return self._line is not None

    def _greeted(self) -> bool:
        return self._hello is not None

    def _hang_up(self) -> None:
        if self._line is not None:
            self._line.end()

    def _came(self, answer: Any, event: bool) -> None:
        self._heard = self._runtime.now()
        if event:
            self._rings(*answer)
        elif self._hello is None:
            self._hello = answer
            self._change.set()
        elif (question := self._asked.popleft()) is not None:
            self._answered(question, answer)

    def _answered(self, question: _Question, answer: Any) -> None:
        form = question.request.form
        failed = isinstance(answer, Failed)
        watcher = getattr(form, "watcher", None)
        kind = type(form).__name__
        if watcher is not None and (not failed or kind == "Exists"):
            what = "children" if kind.startswith("GetChildren") else "data"
            self._watchers.setdefault((what, form.path), {})[watcher] = None
        if not failed:
            question.end(answer, None)
        elif kind == "Exists" and str(answer) == "NoNodeError":
            question.end(None, None)
        elif kind == "Transaction":
            question.end([getattr(_errors, str(answer))()], None)
        else:
            question.end(None, getattr(_errors, str(answer))())

    def _rings(self, what: str, path: str) -> None:
        for one in ("data", "children") if what == "deleted" else (what,):
            for watcher in self._watchers.pop((one, path), {}):
                watcher(Event(path))

    def _ended(self) -> None:
        """Learn that the connection is over: all that was under way has failed, all watches are lost."""
        was, self.up, self._line = self.up, False, None
        asked, self._asked = self._asked, deque()
        watchers = {watcher: None for found in self._watchers.values() for watcher in found}
        self._watchers.clear()
        self._change.set()
        for question in asked:
            if question is not None:
                question.end(None, _errors.ConnectionLoss())
        for watcher in watchers:
            watcher(Event(None))
        if was:
            self._hear(LinkEvent.DOWN)

    # --- the end -------------------------------------------------------------------------------------------------

    async def command(self, word: str, until: float) -> str:
        """Answer nothing: the model has no four-letter words."""
        return ""

    async def close(self) -> None:
        """End the session."""
        self._closed = True
        for wake_up in list(self._waiting):
            wake_up.set()
        line, self.up = self._line, False
        if line is not None:
            question = _Question(Request("close", lambda value: value), self._runtime.signal())
            self._asked.append(question)
            line.send("close")
            await question.answered.wait(CLOSE_WITHIN)
            line.end()
        self.session = None
        job, self._job = self._job, None
        if job is not None:
            await job.join(CLOSE_WITHIN)

    def after_fork(self) -> None:
        """Refuse: a simulated process does not fork."""
        raise Unsupported("a simulated process does not fork")
