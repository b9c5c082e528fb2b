"""The transport on MySQL over a simulated network: the shipped one, but for the driver's connection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from leasehold._runtimes.base import Runtime
from leasehold.errors import Unsupported
from leasehold.stores.mysql.connection import handshake
from leasehold.stores.mysql.connection.base import Connection, Greeting, NoAnswer, Refusal, Rows, no_answer
from leasehold.stores.mysql.connection.settings import Settings
from leasehold.stores.mysql.connection.transport import MySQLTransport
from leasehold.stores.mysql.session import MySQLSessionStore
from leasehold.stores.mysql.store import MySQLStore
from leasehold_lab.runtimes.network import InVirtualTime
from leasehold_lab.runtimes.simulated import SimulatedRuntime
from models.sql.mysql import MySQLModel


@dataclass(frozen=True)
class SimulatedMySQL(InVirtualTime):
    """Opens the store of lease rows on a model of the server, or with ``session`` that of its own locks."""

    server: MySQLModel
    session: bool = False

    def open(self, runtime: Runtime, namespace: str) -> MySQLStore | MySQLSessionStore:
        """Open the store for one client."""
        if not isinstance(runtime, SimulatedRuntime):
            raise Unsupported("a model of MySQL serves clients of simulated harnesses only")
        settings = Settings(f"the model {self.server.machine.name}", "leasehold")
        store = MySQLSessionStore if self.session else MySQLStore
        return store(runtime, settings, namespace, SimulatedMySQLTransport(runtime, settings, self.server))


class ModelConnection:
    """A connection in the place of the driver's: see `leasehold.stores.mysql.connection.base.Connection`."""

    greeting: Greeting
    marker = ""

    def __init__(self, runtime: SimulatedRuntime, server: MySQLModel) -> None:
        self._runtime = runtime
        self._ready = runtime.signal()
        self._answer: Any = None
        self._line = server.connect(runtime.machine, self._heard, self._ended)

    async def run(self, statements: bytes, until: float) -> list[Rows]:
        line = self._line
        if line is None:
            raise NoAnswer("nobody listens")
        self._answer = None
        self._ready.clear()
        line.send(statements)
        try:
            while self._answer is None:
                if not self.usable():
                    raise NoAnswer("the server closed the connection")
                if not await self._ready.wait(max(until - self._runtime.now(), 0.0)):
                    raise NoAnswer("it answered too slowly")
                self._ready.clear()
        except BaseException:
            self.abort()
            raise
        if isinstance(self._answer, Refusal):
            raise self._answer
        answers: list[Rows] = self._answer
        return answers

    def number(self) -> int:
        ((number,),) = self._answer[-1]
        assert isinstance(number, int)
        return number

    def usable(self) -> bool:
        return self._line is not None

    def abort(self) -> None:
        if self._line is not None:
            self._line.end()

    async def close(self) -> None:
        self.abort()

    def disown(self) -> None:
        raise Unsupported("a simulated process does not fork")

    def _heard(self, answer: Any, message: bool) -> None:
        self._answer = answer
        self._ready.set()

    def _ended(self) -> None:
        self._line = None
        self._ready.set()


class SimulatedMySQLTransport(MySQLTransport):
    """The shipped transport, over `ModelConnection`."""

    def __init__(self, runtime: SimulatedRuntime, settings: Settings, server: MySQLModel) -> None:
        super().__init__(runtime, settings)
        self._server = server
        self._simulated = runtime

    async def connect(self, within: float) -> Connection:
        line, until = ModelConnection(self._simulated, self._server), self._runtime.now() + within
        try:
            line.greeting = handshake.greeting(await line.run(handshake.opening(), until), self.where)
        except NoAnswer as error:
            await self._runtime.sleep(self._server.link(self._simulated.machine.name).latency[0])
            raise no_answer(self.where, error, unknown=False) from error
        return line
