"""The connections of the etcd store over a simulated network: the store and its gateway are the shipped ones.

What is modelled is what a connection of HTTP does: a request and its answer, or a stream; how they are spelled in bytes
is left to the tests of the transport.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from leasehold._runtimes.base import Runtime
from leasehold.errors import Unsupported
from leasehold.stores.etcd.connection.settings import Settings
from leasehold.stores.etcd.http.base import Endpoint, Reply, Request, Stream, Unanswered, Unsent
from leasehold.stores.etcd.store import EtcdStore
from leasehold_lab.runtimes.network import InVirtualTime
from leasehold_lab.runtimes.simulated import SimulatedRuntime
from models.etcd.members import Member
from models.net import Connection

PORT = 2379

MOST = 8
"""Idle connections that are kept for each member."""


@dataclass(frozen=True)
class SimulatedEtcd(InVirtualTime):
    """Opens the store on a model of a cluster."""

    members: Sequence[Member]

    def open(self, runtime: Runtime, namespace: str) -> EtcdStore:
        """Open the store for one client."""
        if not isinstance(runtime, SimulatedRuntime):
            raise Unsupported("a model of etcd serves clients of simulated harnesses only")
        places = tuple(Endpoint(member.machine.name, PORT) for member in self.members)
        return EtcdStore(runtime, Settings("the model", places), namespace, ModelHttp(runtime, self.members))


class ModelConnection:
    """A connection: one exchange after the other, or a stream."""

    def __init__(self, runtime: SimulatedRuntime, member: Member) -> None:
        self._runtime = runtime
        self._ready = runtime.signal()
        self._came: deque[Any] = deque()
        self.line: Connection | None = member.connect(runtime.machine, self._hear, self._ended)

    async def ask(self, request: Request, until: float) -> Any:
        """Send a request and return what comes first."""
        assert self.line is not None
        self.line.send((request.target, request.body))
        return await self.next(until)

    async def next(self, until: float) -> Any:
        """Return what comes next.

        Raises:
            Unanswered: nothing did.

        """
        while not self._came:
            if self.line is None:
                raise Unanswered("it closed the connection")
            self._ready.clear()
            if not await self._ready.wait(max(until - self._runtime.now(), 0.0)) and not self._came:
                raise Unanswered("it answered too slowly")
        return self._came.popleft()

    async def read(self, timeout: float) -> bytes:
        """Return what came of a stream, nothing if nothing did."""
        until = self._runtime.now() + timeout
        try:
            piece: bytes = await self.next(until)
        except Unanswered:
            if self.line is None:
                raise
            return b""
        return piece

    def close(self) -> None:
        """End it."""
        if self.line is not None:
            self.line.end()

    def _hear(self, piece: Any, message: bool) -> None:
        self._came.append(piece)
        self._ready.set()

    def _ended(self) -> None:
        self.line = None
        self._ready.set()


@dataclass(eq=False)
class ModelHttp:
    """See `leasehold.stores.etcd.http.base.Http`."""

    runtime: SimulatedRuntime
    members: Sequence[Member]
    idle: defaultdict[str, list[ModelConnection]] = field(
        default_factory=lambda: defaultdict[str, list[ModelConnection]](list)
    )
    closed: bool = False

    async def ask(self, endpoint: Endpoint, request: Request, until: float, *, urgent: bool = False) -> Reply:
        line = await self._line(endpoint)
        whole = False
        try:
            status, body = await line.ask(request, until)
            whole = True
            return Reply(status, body)
        finally:
            if whole and not self.closed and len(self.idle[endpoint.host]) < MOST:
                self.idle[endpoint.host].append(line)
            else:
                line.close()

    async def stream(self, endpoint: Endpoint, request: Request, until: float) -> tuple[int, Stream]:
        line = await self._line(endpoint)
        whole = False
        try:
            first = await line.ask(request, until)
            whole = True
        finally:
            if not whole:
                line.close()
        if isinstance(first, tuple):
            reply = cast("tuple[int, bytes]", first)
            return reply[0], _Whole(reply[1], line)
        line._came.appendleft(first)
        return 200, line

    async def close(self) -> None:
        self.closed = True
        for lines in self.idle.values():
            for line in lines:
                line.close()

    def after_fork(self) -> None:
        raise Unsupported("a simulated process does not fork")

    async def _line(self, endpoint: Endpoint) -> ModelConnection:
        idle = self.idle[endpoint.host]
        while idle:
            line = idle.pop()
            if line.line is not None:
                return line
        member = next(member for member in self.members if member.machine.name == endpoint.host)
        latency = member.link(self.runtime.machine.name).latency[0]
        await self.runtime.sleep(2 * latency)  # to connect takes a round trip
        line = ModelConnection(self.runtime, member)
        if line.line is None:
            raise Unsent("connection refused")
        return line


@dataclass
class _Whole:
    """An answer that is no stream."""

    body: bytes
    line: ModelConnection

    async def read(self, timeout: float) -> bytes:
        return self.body

    def close(self) -> None:
        self.line.close()
