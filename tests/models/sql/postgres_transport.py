"""The transport on PostgreSQL over a simulated network: the shipped one, but for libpq's connection."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

from leasehold._runtimes.base import Runtime, Signal
from leasehold.errors import Unsupported
from leasehold.stores._sql.transport import OnDisconnect, OnMessage, Row, Statement
from leasehold.stores.postgres.connection.base import PostgresTransport
from leasehold.stores.postgres.connection.endpoints import Endpoint
from leasehold.stores.postgres.connection.errors import Broken, ServerError
from leasehold.stores.postgres.connection.exchange import Connection as PostgresConnection
from leasehold.stores.postgres.connection.exchange import SocketWait, Steps
from leasehold.stores.postgres.connection.settings import Settings
from leasehold.stores.postgres.session import SessionStore
from leasehold.stores.postgres.store import PostgresStore
from leasehold_lab.runtimes.network import InVirtualTime
from leasehold_lab.runtimes.simulated import SimulatedRuntime
from models.net import Connection
from models.sql.postgres import PostgresModel

T = TypeVar("T")


@dataclass(frozen=True)
class SimulatedPostgres(InVirtualTime):
    """Opens the store of lease rows on a model of the server, or with ``session`` that of its own locks."""

    server: PostgresModel
    session: bool = False

    def open(self, runtime: Runtime, namespace: str) -> PostgresStore:
        """Open the store for one client."""
        if not isinstance(runtime, SimulatedRuntime):
            raise Unsupported("a model of PostgreSQL serves clients of simulated harnesses only")
        settings = Settings(where=f"the model {self.server.machine.name}")
        store = SessionStore if self.session else PostgresStore
        return store(runtime, settings, namespace, partial(SimulatedPostgresTransport, server=self.server))


class ModelConnection:
    """A connection in the place of libpq's, which asks to wait for a signal: see `postgres.connection.exchange`."""

    encrypted = False

    def __init__(self, runtime: SimulatedRuntime, server: PostgresModel) -> None:
        self._ready = runtime.signal()
        self._messages: deque[str] = deque()
        self._answers: deque[Any] = deque()
        self.facts: dict[str, Any] = {}
        self.backend = 0
        self.line: Connection | None = server.connect(runtime.machine, self._hear, self._ended)

    @property
    def open(self) -> bool:
        """Whether it may be used."""
        return self.line is not None

    def greet(self) -> Generator[Signal, None, None]:
        """Say hello, and learn the number of the backend."""
        self.backend = yield from self._ask(())

    def exchange(self, statements: Sequence[Statement]) -> Generator[Signal, None, list[list[Row]]]:
        """Send a batch and return the rows of each statement."""
        answer = yield from self._ask(tuple(statements))
        if isinstance(answer, ServerError):
            raise answer
        return cast("list[list[Row]]", answer)

    def receive_messages(self, on_message: Callable[[str], None]) -> Generator[Signal, None, None]:
        """Call ``on_message`` with each message, for ever."""
        while True:
            while self._messages:
                on_message(self._messages.popleft())
            if self.line is None:
                raise Broken("the server closed the connection")
            self._ready.clear()
            yield self._ready

    def close(self) -> None:
        """Close it."""
        if self.line is not None:
            self.line.end()

    shut = close

    def disown(self) -> None:
        """Refuse: a simulated process does not fork."""
        raise Unsupported("a simulated process does not fork")

    def _ask(self, request: Sequence[Statement]) -> Generator[Signal, None, Any]:
        if self.line is None:
            raise Broken("nobody listens")
        self.line.send(request)
        while not self._answers:
            if not self.open:
                raise Broken("the server closed the connection")
            self._ready.clear()
            yield self._ready
        return self._answers.popleft()

    def _hear(self, answer: Any, message: bool) -> None:
        (self._messages if message else self._answers).append(answer)
        self._ready.set()

    def _ended(self) -> None:
        self.line = None
        self._ready.set()


class SimulatedPostgresTransport(PostgresTransport):
    """The shipped transport, over `ModelConnection`."""

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        on_message: OnMessage,
        on_disconnect: OnDisconnect,
        *,
        server: PostgresModel,
    ) -> None:
        assert isinstance(runtime, SimulatedRuntime)
        self._server = server
        self._simulated = runtime
        super().__init__(runtime, settings, on_message, on_disconnect)

    async def _ready(self, need: SocketWait, timeout: float | None) -> bool:
        return await cast(Signal, need).wait(timeout)

    async def _connected(self, settings: Settings, endpoint: Endpoint, until: float) -> PostgresConnection:
        link = ModelConnection(self._simulated, self._server)
        if link.line is None:
            await self._runtime.sleep(self._server.link(self._simulated.machine.name).latency[0])
            raise Broken("connection refused")
        made = cast(PostgresConnection, link)
        with self._mutex:
            self._connections.add(made)
        try:
            await self.run(cast("Steps[None]", link.greet()), until)
        except BaseException:
            self.drop(made)
            raise
        return made

    async def _addresses(self, host: str, within: float) -> Sequence[str]:
        raise Unsupported("a simulated server has no name")

    def alive(self, connection: PostgresConnection) -> bool:
        return connection.open
