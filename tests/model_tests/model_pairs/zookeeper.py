"""Requests that go to a real ZooKeeper and to its model, and the comparison of what both say."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.errors import LeaseholdError, StoreUnavailable
from leasehold.stores.zookeeper.connection.requests import (
    Node,
    Request,
    Requests,
)
from leasehold.stores.zookeeper.connection.session import LinkEvent, Session, Transport
from leasehold.stores.zookeeper.connection.settings import Settings
from leasehold_lab.runtimes.simulated import SimulatedRuntime
from models.zookeeper.transport import ModelTransport

if TYPE_CHECKING:
    from zookeeper_sequences import Playing

WITHIN = 10.0
TIMEOUT = 30.0
"""Seconds of a session: none ends by itself."""


class Alike:
    """Compares what both say. Numbers of writes and of sessions are taken for the same as they come."""

    def __init__(self) -> None:
        self._writes: dict[int, int] = {}
        self._sessions: dict[int, int] = {0: 0}

    def both(self, real: Any, modelled: Any) -> bool:
        """Say whether two answers are alike."""
        if isinstance(real, Exception) or isinstance(modelled, Exception):
            return type(real) is type(modelled)
        if isinstance(real, Node) and isinstance(modelled, Node):
            return self._node(real, modelled)
        if hasattr(real, "czxid"):
            return hasattr(modelled, "czxid") and self._stat(real, modelled)
        if isinstance(real, list | tuple) and isinstance(modelled, list | tuple):
            return len(real) == len(modelled) and all(map(self.both, real, modelled))
        return bool(real == modelled and type(real) is type(modelled))

    def _node(self, real: Node, modelled: Node) -> bool:
        plain = [(one.path, one.data, one.version) for one in (real, modelled)]
        return plain[0] == plain[1] and self._written(real, modelled) and self.session(real.owner, modelled.owner)

    def _stat(self, real: Any, modelled: Any) -> bool:
        plain = [(one.version, one.numChildren) for one in (real, modelled)]
        owners = self.session(real.ephemeralOwner, modelled.ephemeralOwner)
        return plain[0] == plain[1] and self._written(real, modelled) and owners

    def _written(self, real: Any, modelled: Any) -> bool:
        return self._same(self._writes, real.czxid, modelled.czxid) and self._same(
            self._writes, real.mzxid, modelled.mzxid
        )

    def session(self, real: int, modelled: int) -> bool:
        """Say whether two sessions may be the same one."""
        return self._same(self._sessions, real, modelled)

    def in_order(self) -> bool:
        """Say whether of the writes that were seen, the same came first at both."""
        modelled = [self._writes[real] for real in sorted(self._writes)]
        return all(one < other for one, other in pairwise(modelled))

    @staticmethod
    def _same(known: dict[int, int], real: int, modelled: int) -> bool:
        return known.setdefault(real, modelled) == modelled and list(known.values()).count(modelled) == 1


class BothTransports(Requests):
    """One session at each; see `leasehold.stores.zookeeper.connection.session`. What the store hears is of the model.

    Attributes:
        before: called before requests.
        lost: whether the next answer is lost.

    """

    def __init__(self, playing: Playing, runtime: SimulatedRuntime, hear: Callable[[LinkEvent], None]) -> None:
        settings = Settings((("127.0.0.1", playing.server.port),), session_timeout=TIMEOUT)
        super().__init__(settings)
        self._playing = playing
        self._clock = BlockingRuntime()
        self.real = Transport(self._clock, settings, lambda link: None)
        self.model = ModelTransport(runtime, settings, playing.ensemble.members, hear)
        self.rung: tuple[list[str], list[str]] = ([], [])
        self.lost = False
        self.before: Callable[[], Awaitable[None]] | None = None

    @property
    def session(self) -> Session | None:
        return self.model.session

    @property
    def up(self) -> bool:
        return self.model.up

    async def ready(self, until: float) -> Session:
        session = await self.model.ready(until)
        real = finish(self.real.ready(self._clock.now() + WITHIN))
        if not self._playing.alike.session(real.id, session.id) or real.timeout != session.timeout:
            self._playing.differ(f"sessions {real} and {session}")
        return session

    async def ask_all(self, requests: Sequence[Request], until: float) -> list[Any]:
        await self.ready(until)
        if self.before is not None:
            await self.before()
        if until <= self._playing.harness.now():
            raise StoreUnavailable("no time is left")
        lost, self.lost = self.lost, False
        async with self._playing.turn():  # who removes what has lapsed asks beside the others
            answers = await self._both(requests)
        if lost:
            raise StoreUnavailable("the answer is lost", unknown=True)
        return answers

    async def _both(self, requests: Sequence[Request]) -> list[Any]:
        """Ask both, with time enough, and compare; the answers of the model go on."""
        until = self._playing.harness.now() + WITHIN
        real: Any
        modelled: Any
        try:
            asked = [self._told(request, 0) for request in requests]
            real = finish(self.real.ask_all(asked, self._clock.now() + WITHIN))
        except LeaseholdError as error:
            real = error
        try:
            modelled = await self.model.ask_all([self._told(request, 1) for request in requests], until)
        except LeaseholdError as error:
            modelled = error
        self._playing.compare(requests, real, modelled)
        if isinstance(modelled, LeaseholdError):
            raise modelled
        answers: list[Any] = modelled
        return answers

    def _told(self, request: Request, side: int) -> Request:
        """Return a request whose watch is taken note of; the store hears the model's."""
        watcher = getattr(request.form, "watcher", None)
        if watcher is None:
            return request
        what = f"{type(request.form).__name__} {request.form.path}"

        def ring(event: Any) -> None:
            self.rung[side].append(f"{what} {'lost' if event.path is None else 'changed'}")
            if side:
                watcher(event)

        return Request(request.form._replace(watcher=ring), request.read)

    def heard(self) -> None:
        """Wait until all is heard that the real server has told by now."""
        finish(self.real.ask_all([self.sync("/")], self._clock.now() + WITHIN))
        done = threading.Event()
        self.real._kazoo.handler.callback_queue.put(done.set)
        assert done.wait(WITHIN)

    def expire(self) -> None:
        """Let both servers end the session."""
        session = finish(self.real.ready(self._clock.now() + WITHIN))
        self._playing.server.end_session(self.real._kazoo.client_id)
        until = self._clock.now() + WITHIN
        while self.real.session is None or self.real.session.id == session.id:
            assert self._clock.now() < until
            threading.Event().wait(0.005)
        assert self.session is not None
        self._playing.ensemble.end(self.session.id)
        self._playing.ensemble.members[0].hang_up(self.model._runtime.machine, arrives=True)

    async def command(self, word: str, until: float) -> str:
        return ""

    async def close(self) -> None:
        finish(self.real.close())
        await self.model.close()

    def after_fork(self) -> None:
        raise NotImplementedError
