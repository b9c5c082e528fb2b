"""One session with an ensemble, for both flavors, over kazoo's connection. The requests are in ``requests.py``.

A request is put in kazoo's queue. Its answer sets a `Signal` of the runtime, for which a thread or a task waits. So
this needs no thread of its own. How kazoo is used is in ``kazoo_client.py``.

Requests of one session are answered in the order in which they were sent. When a connection is lost, kazoo fails all
requests that are queued or under way. So no request is sent on a later connection than the one it was made for. Only
bytes that the kernel already has may arrive late.

A server closes the connection of a client that has seen a later transaction than the server. Such a server lags behind,
and another one accepts the client. But an ensemble whose data was wiped or restored from an old copy refuses the client
for ever. So a client that found no server for the length of its session no longer reports the last transaction that it
has seen, and only asks whether its session exists.
"""

from __future__ import annotations

import enum
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from leasehold._runtimes.base import Runtime, Signal
from leasehold.errors import StoreUnavailable
from leasehold.stores._common.drivers import Answer
from leasehold.stores.zookeeper.connection.errors import no_session, to_error
from leasehold.stores.zookeeper.connection.kazoo_client import (
    LogMessages,
    client_of,
    close_inherited,
    end_background,
    shut_down,
)
from leasehold.stores.zookeeper.connection.requests import Request, Requests
from leasehold.stores.zookeeper.connection.settings import Settings

_connection: Any = importlib.import_module("kazoo.protocol.connection")

SILENT_AFTER = 1.0
"""Seconds without any reply after which a request that timed out closes its connection."""

CLOSE_WITHIN = 2.0
"""Seconds that a close may take."""

CONFIRM_WITHIN = 1.5
"""Seconds of these in which a server may confirm the end of a session; after that it ends by itself at its timeout."""

SHUT_AGAIN = 0.1
"""Seconds after which the connection of a client that does not end is shut down again: it may have made another."""


class LinkEvent(enum.Enum):
    """What happened to the connection."""

    UP = "up"
    DOWN = "down"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Session:
    """A session as the server granted it: its id, and its timeout in seconds."""

    id: int
    timeout: float


class Transport(Requests):
    """One session at a time; a new one when the last has expired."""

    def __init__(self, runtime: Runtime, settings: Settings, on_event: Callable[[LinkEvent], None]) -> None:
        super().__init__(settings)
        self._runtime = runtime
        self._settings = settings
        self._on_event = on_event
        self._reset()

    def _reset(self) -> None:
        self._mutex = self._runtime.mutex()
        self._kazoo: Any = None
        self._messages = LogMessages(self._wake)
        self._waiting: set[Signal] = set()
        self._last_reply = 0.0
        self.session: Session | None = None
        self.up = False
        self._down: float | None = None  # since when there is no connection, if there was one
        self._closed = False

    # --- requests ------------------------------------------------------------------------------------------------

    async def ask_all(self, requests: Sequence[Request], until: float) -> list[Any]:
        """Send several requests at once; return the answer to each, which may be an error of the class `Answer`.

        Raises:
            StoreUnavailable: one of them has no answer.
        """
        if not requests:
            return []
        client = await self._connected(until)
        sent, done = self._runtime.now(), self._runtime.signal()
        results = [client.handler.async_result() for _ in requests]
        for request, result in zip(requests, results, strict=True):
            client._call(request.form, result)
        results[-1].rawlink(partial(_set, done))
        if not await done.wait(max(0.0, until - self._runtime.now())):
            self._cut_if_silent(client, sent)
            raise StoreUnavailable(f"ZooKeeper at {self._settings.where} did not answer in time", unknown=True)
        self._last_reply = self._runtime.now()
        return [self._answer(request, result) for request, result in zip(requests, results, strict=True)]

    def _answer(self, request: Request, result: Any) -> Any:
        answer: Any
        if result.successful():
            answer = request.read(result.value)
        elif (answer := result.exception) is None:  # kazoo fails what it cannot send before what it has sent earlier
            raise StoreUnavailable(f"ZooKeeper at {self._settings.where} has not answered", unknown=True)
        if isinstance(answer, BaseException):
            answer = to_error(answer, self._settings.where)
            if not isinstance(answer, Answer):
                raise answer
        return answer

    def _cut_if_silent(self, client: Any, sent: float) -> None:
        """Shut down a connection without any reply since ``sent``: another server may answer."""
        if self._last_reply < sent < self._runtime.now() - SILENT_AFTER:
            shut_down(client)

    # --- the session ---------------------------------------------------------------------------------------------

    async def ready(self, until: float) -> Session:
        """Wait for a connection, and return its session."""
        await self._connected(until)
        session = self.session
        if session is None:
            raise StoreUnavailable(f"ZooKeeper at {self._settings.where}: the session has expired")
        return session

    async def _connected(self, until: float) -> Any:
        while True:
            client, wake_up = self._kazoo, None
            if client is not None and self.up:
                return client
            with self._mutex:
                if self._closed:
                    raise StoreUnavailable("the connection with ZooKeeper was closed")
                if self._kazoo is None or self._messages.refused:
                    self._open()
                messages = self._messages
                if not self.up:
                    wake_up = self._runtime.signal()
                    self._waiting.add(wake_up)
            if wake_up is None:
                continue
            try:
                if not await wake_up.wait(max(0.0, until - self._runtime.now())):
                    self._drop_if_dead()
                    raise no_session(messages.last, self._settings.where)
            finally:
                self._waiting.discard(wake_up)
            if messages.refused:
                raise self._refused(messages)

    def _wake(self) -> None:
        """Wake the callers that wait for a connection: there is one, or there will be none."""
        with self._mutex:
            wake_ups = list(self._waiting)
        for wake_up in wake_ups:
            wake_up.set()

    def _refused(self, messages: LogMessages) -> StoreUnavailable:
        """Drop the client of these messages, which will not retry; the next caller opens a new one."""
        with self._mutex:
            client = self._kazoo if self._messages is messages else None
            if client is not None:
                self._kazoo = None
        if client is not None:
            end_background(client)
        error = to_error(_connection.AuthFailedError(), self._settings.where)
        assert isinstance(error, StoreUnavailable)
        return error

    def _drop_if_dead(self) -> bool:
        """Drop a client whose thread an error has ended, as of a reply that it cannot read: the next caller opens one.

        kazoo logs the error before; a client that has not begun has logged nothing. One that finds no address of a host
        has logged that, and is alive. Return whether it was dropped.
        """
        with self._mutex:
            client = self._kazoo
            if client is None or client.client_state != "CLOSED" or not self._messages.last:
                return False
            if not client._connection.connection_stopped.is_set():
                return False
            self._kazoo = None
        end_background(client)
        return True

    def _open(self) -> None:
        self._messages = LogMessages(self._wake)
        client = client_of(self._settings, self._messages)
        self._listen(client)
        try:
            self._kazoo = client
            client.start_async()
        except BaseException:  # raised by a signal handler, perhaps: half started, it would never connect
            self._kazoo = None
            end_background(client)
            raise

    def _listen(self, client: Any) -> None:
        connect = client._connection._connect

        def connected(*where: Any) -> Any:
            down, session = self._down, self.session
            if down is not None and session is not None and self._runtime.now() > down + session.timeout:
                client.last_zxid = 0
            timeouts = connect(*where)  # it returns after the authentication; listeners are called earlier
            session = Session(int(client._session_id), timeouts[0] * 1.5 / 1000)  # kazoo waits two thirds of it
            self._link_changed(client, LinkEvent.UP, session)
            return timeouts

        client._connection._connect = connected
        client.add_listener(partial(self._changed, client))

    def _changed(self, client: Any, state: str) -> None:
        if state != "CONNECTED":
            self._link_changed(client, LinkEvent.DOWN if state == "SUSPENDED" else LinkEvent.EXPIRED, None)

    def _link_changed(self, client: Any, link: LinkEvent, session: Session | None) -> None:
        with self._mutex:
            if client is not self._kazoo:  # an old client, which is being closed
                return
            known = self.session is not None
            if link is LinkEvent.UP or self.up:
                self._down = None if link is LinkEvent.UP else self._runtime.now()
            self.up = link is LinkEvent.UP
            self.session = session if link is LinkEvent.UP else None if link is LinkEvent.EXPIRED else self.session
            self._messages.refused = self._messages.refused or client.client_state == "AUTH_FAILED"
            decided = self.up or self._messages.refused
        if decided:
            self._wake()
        if self._drop_if_dead() and known:  # else its thread may end at once, again and again
            self._wake()
        self._on_event(link)

    async def command(self, word: str, until: float) -> str:
        """Send a four-letter command to the connected server; return its answer, empty if there is none."""
        client = await self._connected(until)

        def ask() -> str:
            try:
                return str(client.command(word.encode()))
            except Exception:  # the server may not permit it; nothing depends on the answer
                return ""

        return await self._runtime.offload(ask)

    # --- the end -------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """End the session, so that its nodes are gone at once, if there is a connection, in `CLOSE_WITHIN` seconds."""
        until = self._runtime.now() + CLOSE_WITHIN
        with self._mutex:
            patience = CONFIRM_WITHIN if self.up else SHUT_AGAIN
            client, self._kazoo, self.session, self.up, self._closed = self._kazoo, None, None, False, True
        self._wake()
        if client is None:
            return
        done = self._runtime.signal()
        end_background(client, done)
        while not await done.wait(min(patience, until - self._runtime.now())) and self._runtime.now() < until:
            shut_down(client)
            patience = SHUT_AGAIN

    def after_fork(self) -> None:
        """Close, in a forked child, the parent's descriptors; nothing is sent."""
        client = self._kazoo
        self._reset()
        if client is not None:
            close_inherited(client)


def _set(done: Signal, _: Any) -> None:
    done.set()
