"""What opens, inspects and closes the asyncio client."""

from __future__ import annotations

from functools import partial
from types import TracebackType
from typing import Self
from weakref import proxy

from leasehold import _validate
from leasehold._engine.acquire import leave_loop
from leasehold._engine.engine import Engine
from leasehold._engine.retry import asked, views_of
from leasehold._inspection import LockInfo
from leasehold._model import RESPONSE_TIMEOUT, Finding, ReleaseReason
from leasehold._runtimes.aio import AsyncioRuntime
from leasehold._runtimes.base import Flavor, Runtime
from leasehold._validate import Seconds
from leasehold.events import Observer
from leasehold.observability.log import Logged
from leasehold.primitives.locks.options import Options
from leasehold.primitives.locks.rlock import Entries
from leasehold.store_api import Opener, Store
from leasehold.stores import registry


def no_opener(client: type, given: str) -> TypeError:
    """Return the error for a client that was made from an object of the class ``given``."""
    return TypeError(
        f"{client.__name__} takes an opener, not a {given}; write {client.__name__}.from_url(…) for a URL, or "
        f"{client.__name__}.from_client(…) for a client of a driver"
    )


class AsyncClientBase:
    """One connection to one store, for asyncio."""

    def __init__(
        self,
        store: Opener,
        *,
        namespace: str = "default",
        response_timeout: Seconds = RESPONSE_TIMEOUT,
        observer: Observer | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        """Make a client; nothing is sent before the first use.

        Args:
            store: what opens the store: a `leasehold.store_api.Opener`, as `from_url` makes one.
            namespace: names of different namespaces never collide; 1 to 512 bytes of UTF-8.
            response_timeout: seconds after which a store that has not answered counts as unavailable.
            observer: called with each event (see `leasehold.events`); it must not block.
            runtime: the runtime to use; asyncio unless a test passes another.

        Raises:
            ValueError, TypeError: a value is out of its bounds.
        """
        if not hasattr(store, "open"):
            wrong = type(store).__name__
            del store  # a URL may have a password, and a traceback's reader may show local variables
            raise no_opener(type(self), wrong)
        runtime = AsyncioRuntime() if runtime is None else runtime
        opened = store.open(runtime, _validate.name(namespace, "namespace"))
        self._engine = Engine(
            runtime,
            opened,
            response_timeout=_validate.above_zero(response_timeout, "response_timeout", _validate.LONGEST_ANSWER),
            observer=Logged(observer),
            namespace=namespace,
        )
        if isinstance(runtime, AsyncioRuntime):
            runtime.leave_loop = partial(leave_loop, proxy(self._engine))
        self._entries = Entries()
        self._usual: dict[bool, Options] = {}  # of locks without options, fair or not
        self._engine.of_process = (self._usual, self._entries)  # they name the parent as the owner

    @classmethod
    def from_url(
        cls,
        url: str | None = None,
        *,
        namespace: str = "default",
        response_timeout: Seconds = RESPONSE_TIMEOUT,
        observer: Observer | None = None,
    ) -> Self:
        """Make a client for the store at ``url``; nothing is sent before the first use.

        Args:
            url: for example ``redis://localhost:6379/0``; None takes ``LEASEHOLD_URL`` from the environment, and
                without it SQLite in the user's state folder, which needs no server.
            namespace: names of different namespaces never collide; 1 to 512 bytes of UTF-8.
            response_timeout: seconds after which a store that has not answered counts as unavailable.
            observer: called with each event (see `leasehold.events`); it must not block.

        Returns:
            The client, to be closed by ``async with`` or `close`.

        Raises:
            ValueError: the URL is malformed, or its scheme or an option of it is unknown; or ``namespace`` or
                ``response_timeout`` (above 0 to 3600 s) is out of its bounds.
            TypeError: a value has the wrong type.
            MissingDriver: the message says what to install.
        """
        hidden = registry.hide(url)
        del url  # it may have a password, and a traceback's reader may show local variables
        made = cls(registry.opener(hidden), namespace=namespace, response_timeout=response_timeout, observer=observer)
        made._engine.origin = (registry.shown(hidden), namespace)
        return made

    @classmethod
    def from_client(
        cls,
        client: object,
        *,
        strict: registry.Strict | None = None,
        namespace: str = "default",
        response_timeout: Seconds = RESPONSE_TIMEOUT,
        observer: Observer | None = None,
    ) -> Self:
        """Make a client that connects to the store as an asyncio client object of yours does.

        Your object stays yours: it is neither used for commands nor closed; connections are made by its settings.

        Args:
            client: for example a ``redis.asyncio.Redis``; a list of them are the nodes of a Redlock.
            strict: the options of strict mode, for clients of Redis, Sentinel and Cluster.
            namespace: names of different namespaces never collide; 1 to 512 bytes of UTF-8.
            response_timeout: seconds after which a store that has not answered counts as unavailable.
            observer: called with each event (see `leasehold.events`); it must not block.

        Returns:
            The client, to be closed by ``async with`` or `close`.

        Raises:
            TypeError: ``client`` is of an unknown class or of the other flavor, or its store has no strict mode; or a
                value has the wrong type.
            ValueError: the client's settings lack what locks need, as the name of a database, or they cannot be
                repeated for another connection; or ``namespace`` or ``response_timeout`` is out of its bounds.
            Unsupported: the store cannot be used for locks in the way in which the client connects to it.
            MissingDriver: the message says what to install.
        """
        opener = registry.adopt(client, Flavor.ASYNC, strict=strict)
        return cls(opener, namespace=namespace, response_timeout=response_timeout, observer=observer)

    @property
    def store(self) -> Store:
        """The store, for those who write their own primitives."""
        return self._engine.store

    @property
    def owner(self) -> str:
        """How this client is shown to others: ``host:pid:client``."""
        return str(self._engine.owner)

    async def holds(self, prefix: str = "") -> list[LockInfo]:
        """Return all names that begin with ``prefix`` and are held, waited for or kept free, in order of name.

        Each of its requests may take 5 s, or ``response_timeout`` if that is longer.

        Raises:
            StoreUnavailable: the store did not answer.
        """
        self._engine.ready()
        views = await asked(
            self._engine.store.inspect(prefix, within=max(RESPONSE_TIMEOUT, self._engine.response_timeout))
        )
        return sorted((LockInfo.of(view) for view in views), key=lambda info: info.name)

    async def inspect(self, name: str) -> LockInfo | None:
        """Return the holders of ``name`` and its waiters; None if there are none.

        Raises:
            StoreUnavailable: the store did not answer.
            ValueError, TypeError: the name is out of its bounds.
        """
        self._engine.ready()
        views = await views_of(self._engine.store, _validate.name(name), self._engine.response_timeout)
        return LockInfo.of(views[0]) if views else None

    async def force_release(self, name: str, token: int) -> bool:
        """Release ``name`` for the holder that has ``token``, and for no other.

        The holder notices the loss at its next renewal; its ``lock_delay`` applies. The next holder has a
        higher token.

        Args:
            name: the lock's name.
            token: the holder's fencing token, as `inspect` shows it. A holder of another library may have none; free
                its lock with that library.

        Returns:
            Whether that holder was there.

        Raises:
            StoreUnavailable: the store did not answer; with ``unknown`` the lock may have been released.
        """
        self._engine.ready()
        for view in await views_of(self._engine.store, _validate.name(name), self._engine.response_timeout):
            for entry in view.holders:
                if entry.token == token:
                    within = self._engine.response_timeout
                    return await asked(
                        self._engine.store.release(name, entry.ticket, reason=ReleaseReason.BREAK, within=within)
                    )
        return False

    async def ping(self) -> None:
        """Check that the store answers and takes requests for locks, for a readiness probe; nothing is changed.

        It sends one request to where locks are acquired: a primary (of a cluster, one of them), a majority of a
        Redlock, a file that it may write. It takes no lock, so what others hold is no obstacle.

        Raises:
            StoreUnavailable: the store did not answer within ``response_timeout``, or takes no request for locks; where
                it said why, as with a missing right or table, this is a `StoreRefused`.
            Unsupported: the server answered, and cannot promise locks: too old, of another kind, a network file system.
            RuntimeError: the client is closed.
        """
        self._engine.ready()
        await self._engine.ping()

    async def diagnose(self) -> list[Finding]:
        """Return what the store's settings mean for the promises, as ``leasehold doctor`` shows it.

        Raises:
            StoreUnavailable: the store did not answer.
        """
        self._engine.ready()
        return await asked(self._engine.store.diagnose())

    async def close(self) -> None:
        """End what is still held, release it, and close the connections, in about two seconds at most.

        A hold that is still held ends as a loss, before another client can acquire: its ``on_lost`` callbacks are
        called, and its block is cancelled and raises `LeaseLost`. Later calls on the client and its objects raise
        RuntimeError. A further `close` does nothing.
        """
        runtime = self._engine.runtime
        if isinstance(runtime, AsyncioRuntime) and runtime._loop is not None and runtime._loop.is_closed():
            runtime.before_release()  # else it would wait for what is under way in the closed loop
        await self._engine.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __reduce__(self) -> str:
        raise TypeError("the client cannot be copied or sent to another process; make a new one there")

    def __repr__(self) -> str:
        engine = getattr(self, "_engine", None)  # not there yet in the traceback of a refused argument
        return f"<{type(self).__name__} {None if engine is None else engine.store!r}>"
