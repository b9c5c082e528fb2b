"""The driver's client as it is used here: one for each of our clients, in both flavors.

The driver has a thread of its own for its connections. A request is handed to it, and its answer sets a `Signal` of the
runtime, for which a thread or a task waits. So this needs no thread of its own.

Each request is sent once, on one connection: the driver would repeat it for two minutes, also after its ticket has been
released. The engine repeats requests, and knows what a second answer means. Any member forwards a request to the leader
of its CP group.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores._common.drivers import Answer
from leasehold.stores._common.keyed_lock import KeyedLock
from leasehold.stores.hazelcast.connection.errors import not_connected, to_error
from leasehold.stores.hazelcast.connection.modules import hazelcast, module
from leasehold.stores.hazelcast.connection.settings import Settings

_Invocation: Any = module("invocation").Invocation
_Config: Any = module("config").Config

CONNECT_WITHIN = 5.0
"""Seconds for which the driver looks for a member before it gives up. After that the next request makes a new one."""

LOGIN_AT_LEAST = 1.0
"""Seconds that a member has for a connection and its login, at least; else each has a share of `CONNECT_WITHIN`."""

BEAT, SILENT_AFTER = 1.0, 6.0
"""Seconds between the driver's own messages on a connection, and of silence after which it closes the connection."""

LOOK_AGAIN = 0.05
"""Seconds after which it is checked whether the driver has connected, and which logins take too long."""

ONCE = 1.0
"""A time limit of the driver, long past on the wall clock: so it repeats no request."""

Codec = Callable[[Any], Any]


class Call:
    """One request that was sent, and its answer."""

    __slots__ = ("_future", "_runtime", "_where")

    def __init__(self, future: Any, runtime: Runtime, where: str) -> None:
        self._future = future
        self._runtime = runtime
        self._where = where

    async def wait(self, timeout: float) -> bool:
        """Wait until it is done; return whether it is. A signal serves one task, so each wait has its own."""
        signal = self._runtime.signal()
        self.when_done(signal.set)
        return await signal.wait(max(0.0, timeout))

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` at the answer, from a thread of the driver."""

        def ended(_: Any) -> None:
            callback()

        self._future.add_done_callback(ended)

    def done(self) -> bool:
        """Return whether there is an answer, or there will be none."""
        return bool(self._future.done())

    def succeeded(self) -> bool:
        """Return whether there is an answer that is no error."""
        return bool(self._future.is_success())

    def answered(self) -> bool:
        """Return whether the servers have answered, with an error of the class `Answer` perhaps."""
        return self.succeeded() or (self.done() and isinstance(to_error(self._future.exception(), ""), Answer))

    def result(self) -> Any:
        """Return the answer.

        Raises:
            Answer, LeaseholdError: the request failed.
        """
        if self._future.is_success():
            return self._future.result()
        raise to_error(self._future.exception(), self._where)


class Driver:
    """Sends requests. The connections are made at the first one."""

    def __init__(self, runtime: Runtime, settings: Settings, on_disconnect: Callable[[], None]) -> None:
        """Make one without connections; ``on_disconnect`` is called when no member can be reached any more."""
        self._runtime = runtime
        self._settings = settings
        self._on_disconnect = on_disconnect
        self._reset()

    def _reset(self) -> None:
        self._mutex = self._runtime.mutex()
        self._opening = KeyedLock(self._runtime, f"no connection with Hazelcast at {self._settings.where} in time")
        self._client: Any = None
        self._closed = False

    @property
    def where(self) -> str:
        """For messages to people: hosts and ports."""
        return self._settings.where

    async def ask(self, request: Any, read: Codec, until: float) -> Any:
        """Send a request; return its answer, read by ``read``.

        Raises:
            Answer: the servers refused, and changed nothing.
            StoreUnavailable: no answer.
        """
        return await self.answer(await self.send(request, read, until), until)

    async def answer(self, call: Call, until: float) -> Any:
        """Wait for the answer of a request; as `ask`."""
        if not await call.wait(until - self._runtime.now()):
            raise StoreUnavailable(f"Hazelcast at {self.where} did not answer in time", unknown=True)
        return call.result()

    async def send(self, request: Any, read: Codec, until: float) -> Call:
        """Send a request of a codec of the driver; ``read`` reads its answer.

        Raises:
            StoreUnavailable: there is no connection; nothing was sent.
        """
        return self.post(await self.connected(until), request, read)

    def post(self, client: Any, request: Any, read: Codec) -> Call:
        """Send a request through a client that `connected` returned.

        Raises:
            StoreUnavailable: there is no connection; nothing was sent.
        """
        connection = client._connection_manager.get_random_connection()
        if connection is None:
            raise not_connected(self.where, self._settings.cluster, OSError("all connections were lost"))
        invocation = _Invocation(request, connection=connection, timeout=ONCE, response_handler=read)
        client._invocation_service.invoke(invocation)
        return Call(invocation.future, self._runtime, self.where)

    async def connected(self, until: float) -> Any:
        """Return the driver's client, which has a connection.

        Raises:
            StoreUnavailable: no member can be reached.
        """
        while True:
            client = await self._running(until)
            manager = client._connection_manager
            if manager.active_connections and manager.initialized_on_cluster():
                return client
            left = until - self._runtime.now()  # it connects, or ends
            if left > 0:
                await self._runtime.sleep(min(left, LOOK_AGAIN))
            if left <= 0 or not (self._closed or client.lifecycle_service.is_running()):
                error = OSError("no member answered")
                raise not_connected(self.where, self._settings.cluster, error) from error

    async def members(self, until: float) -> Sequence[Any]:
        """Return the members of the cluster, once the driver knows them: their list comes after the connection.

        Raises:
            StoreUnavailable: no member can be reached.
        """
        client = await self.connected(until)
        while not (found := client.cluster_service.get_members()) and self._runtime.now() < until:
            await self._runtime.sleep(LOOK_AGAIN)
        return list(found)

    async def _running(self, until: float) -> Any:
        """Return the driver's client, made if there is none that runs."""
        client = self._client
        if client is not None and client.lifecycle_service.is_running():
            return client
        async with self._opening.hold("client", until):
            client = self._client
            if client is None or not client.lifecycle_service.is_running():
                if self._closed:
                    raise StoreUnavailable("the connection with Hazelcast was closed")
                client = await self._runtime.offload(self._open)
        return client

    def _open(self) -> Any:
        """Make a client, which connects in a thread of its own: `connected` waits for it, as long as it may.

        Who asked for it may have been cancelled meanwhile, so it is kept here.
        """
        if self._client is not None and self._client.lifecycle_service.is_running():
            return self._client
        wanted, config = self._settings, _Config()
        config.cluster_name = wanted.cluster
        config.cluster_members = [f"{host}:{port}" for host, port in wanted.hosts]
        config.client_name = f"leasehold-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        config.async_start = True
        config.connection_timeout = config.cluster_connect_timeout = CONNECT_WITHIN
        config.retry_initial_backoff, config.retry_max_backoff = 0.1, 1.0
        config.heartbeat_interval, config.heartbeat_timeout = BEAT, SILENT_AFTER
        config.backup_ack_to_client_enabled = False
        config.lifecycle_listeners = [self._lifecycle]
        if wanted.password is not None:
            config.creds_username, config.creds_password = wanted.username, wanted.password.reveal()
        for option, value in wanted.tls.items():
            setattr(config, option, value)
        try:
            client = hazelcast.HazelcastClient(config)
        except Exception as error:  # the frames of its traceback know the password
            raise not_connected(self.where, wanted.cluster, error) from error.with_traceback(None)
        self._end_slow_logins(client)
        with self._mutex:
            old, self._client = self._client, client
            closed = self._closed
        if old is not None:
            old.shutdown()
        if closed:
            client.shutdown()
            raise StoreUnavailable("the connection with Hazelcast was closed")
        return client

    def _end_slow_logins(self, client: Any) -> None:
        """Close each connection whose login takes too long: the driver tries one member after another, without limit.

        A member that was stopped still accepts connections. It runs in the thread of the connections.
        """
        limit = max(LOGIN_AT_LEAST, CONNECT_WITHIN / len(self._settings.hosts))
        reactor, began = client._reactor, dict[Any, float]()

        def look() -> None:
            nonlocal began
            if not client.lifecycle_service.is_running():
                return
            now = self._runtime.now()
            # The pipe that wakes the thread is in the map, too, and has no `remote_uuid`.
            new = [one for one in list(reactor.map.values()) if getattr(one, "remote_uuid", one) is None]
            began = {one: began.get(one, now) for one in new}
            for connection in [one for one in new if began[one] <= now - limit]:
                with suppress(Exception):  # the thread would end
                    connection.close_connection("no answer to the login", None)
            reactor.add_timer(LOOK_AGAIN, look)

        reactor.add_timer(LOOK_AGAIN, look)

    def _lifecycle(self, state: str) -> None:
        if state == "DISCONNECTED" and not self._closed:
            self._on_disconnect()

    async def close(self) -> None:
        """End the connections, and the driver's threads."""
        with self._mutex:
            client, self._client, self._closed = self._client, None, True
        if client is not None:
            await self._runtime.offload(client.shutdown)

    def after_fork(self) -> None:
        """Close, in a forked child, the parent's descriptors; nothing is sent."""
        client = self._client
        self._reset()
        if client is None:
            return
        reactor = client._reactor
        for end in list(reactor.map.values()):
            with suppress(Exception):
                if end is reactor._loop.waker:
                    os.close(end._read_fd)
                    os.close(end._write_fd)
                else:
                    socket.close(end.socket.detach())
        reactor.map.clear()
