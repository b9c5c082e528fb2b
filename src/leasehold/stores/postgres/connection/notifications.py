"""Messages for one client, on a connection of their own: opened for the first waiter, and read by one job.

There are no messages through a pooler, unless ``listen=`` in the URL names the server behind it. The advisory lock of
the listener shows whether that leads to the same database.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from leasehold._model import ticket_id
from leasehold._runtimes.base import Job, Runtime, Signal
from leasehold.errors import LeaseholdError, StoreUnavailable
from leasehold.stores._sql.transport import OnDisconnect, OnMessage, Outcome, Refused, SQLTransport, Statement
from leasehold.stores.postgres.connection.errors import Broken, ServerError, no_answer, refused
from leasehold.stores.postgres.connection.exchange import Connection, Steps
from leasehold.stores.postgres.connection.settings import Settings

T = TypeVar("T")

LISTEN_WITHIN = 5.0
"""Seconds that opening the connection and subscribing may take."""

SUBSCRIBERS = 1818583393  # "leas"
"""First half of the key of the advisory lock of a channel's listener; `channel_number` is the other half.

The listening session holds it, shared, so it ends with that session. A hand-over passes over waiters without it."""

SUBSCRIBER_SEEN = (
    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND classid::bigint = $1 "
    "AND objid::bigint = $2 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


class Connecting(SQLTransport, Protocol):
    """What this needs of the transport; see `leasehold.stores.postgres.connection.base.PostgresTransport`."""

    settings: Settings

    async def connect(self, until: float, settings: Settings | None = None) -> Connection: ...

    async def run(self, steps: Steps[T], until: float | None) -> T: ...

    def drop(self, connection: Connection) -> None: ...


class Subscriptions:
    """The subscription of one client. Used by many threads or tasks at once."""

    def __init__(
        self, runtime: Runtime, transport: Connecting, on_message: OnMessage, on_disconnect: OnDisconnect
    ) -> None:
        self._runtime = runtime
        self._transport = transport
        self._on_message = on_message
        self._on_silence = on_disconnect
        self._mutex = runtime.recursive_mutex()  # the collector may close a coroutine of a closed loop
        number = int.from_bytes(runtime.random_bytes(4), "big") >> 1
        self._name = f"leasehold_{number:08x}_{ticket_id(runtime.random_bytes(16))}"
        self._enabled = transport.settings.messages
        self._count = 0
        self._opening: list[Signal] = []
        self._job: Job | None = None
        self._connection: Connection | None = None
        self._error: StoreUnavailable | None = None
        self._closed = False
        self.generation = 0
        """The number of the current subscription, 0 without one."""

    @property
    def channel(self) -> str:
        """The channel of messages for this client; empty if there are no messages."""
        return self._name if self._enabled and self.generation else ""

    def found_pooler(self) -> None:
        """Record that a pooler is in front of the server: messages need a way past it."""
        self._enabled = self._enabled and self._transport.settings.subscriptions is not None

    async def listen(self, within: float) -> int:
        """Subscribe to messages; see `SQLTransport.listen`."""
        if self.generation or not self._enabled:
            return self.generation
        signal = self._runtime.signal()
        with self._mutex:
            self._opening.append(signal)
            if self._job is None or not self._job.alive():
                self._error = None  # of an earlier attempt
                self._job = self._runtime.spawn(self._receive, "leasehold-listen")
        await signal.wait(within)
        if self.generation or not self._enabled:
            return self.generation
        raise self._error or no_answer(self._transport.where, "the subscription took too long", unknown=False)

    async def close(self) -> None:
        """End the subscription: shut the connection down, and wait for the job that reads it."""
        with self._mutex:
            self._closed = True
            job, connection = self._job, self._connection
        if connection is not None:
            connection.shut()
        if job is not None:
            await job.join(1.0)

    async def _receive(self) -> None:
        transport, connection = self._transport, None
        try:
            connection = await transport.connect(self._runtime.now() + LISTEN_WITHIN, transport.settings.subscriptions)
            self._enabled = self._enabled and not connection.facts["pooled"]
            with self._mutex:
                if self._closed or not self._enabled:
                    return
                self._connection = connection
            key = (SUBSCRIBERS, channel_number(self._name))
            shown = Statement("SELECT pg_advisory_lock_shared($1::int, $2::int)", key)
            begins = connection.exchange([Statement(f'LISTEN "{self._name}"'), shown])
            await transport.run(begins, self._runtime.now() + LISTEN_WITHIN)
            if transport.settings.subscriptions is not None:
                await self._same_database(transport.settings.subscriptions)
            self._error = None
            self._count += 1
            self.generation = self._count
            self._opened()
            await transport.run(connection.receive_messages(self._on_message), None)
        except LeaseholdError as error:
            self._error = error if isinstance(error, StoreUnavailable) else None
        except (Broken, TimeoutError):
            pass
        except ServerError as error:
            self._error = refused(transport.where, error)
        finally:
            was, self.generation, self._connection = self.generation, 0, None
            if connection is not None:
                transport.drop(connection)
            with self._mutex:
                self._job = None
            self._opened()
            if was:
                self._on_silence()

    async def _same_database(self, subscriptions: Settings) -> None:
        """Raise unless the transport's connections see this listener: hand-overs would pass over this client."""
        seen = Statement(SUBSCRIBER_SEEN, (SUBSCRIBERS, channel_number(self._name)))
        ((found,),) = await self._transport.transact(lambda tx: tx.commit(seen), within=LISTEN_WITHIN)
        if not found[0]:
            there, here = subscriptions.where, self._transport.where
            words = f"listen= leads to another database ({there}) than the rest of the URL ({here})"
            raise Refused(f"{words}; name the server behind the pooler", outcome=Outcome.LASTING)

    def _opened(self) -> None:
        with self._mutex:
            opening, self._opening = self._opening, []
        for signal in opening:
            signal.set()


def channel_number(channel: str) -> int:
    """Return the second half of the key of a channel's advisory lock; 0 if the channel is not one of ours."""
    parts = channel.split("_")
    try:
        return int(parts[1], 16) if len(parts) > 2 else 0
    except ValueError:
        return 0
