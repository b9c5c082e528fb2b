"""The client: one connection to one store, and a method for each primitive. `AsyncClient` awaits, `Client` blocks."""

from __future__ import annotations

from types import TracebackType

from leasehold import validate
from leasehold.engine.acquire import Engine
from leasehold.engine.events import Observer
from leasehold.inspection import LockInfo
from leasehold.model import Departure, Finding, Rule
from leasehold.observe.log import logged
from leasehold.primitives.lock import AsyncLock, Lock
from leasehold.primitives.options import DEFAULT_LEASE, Options
from leasehold.primitives.rlock import AsyncRLock, Reentries, RLock
from leasehold.runtimes import process
from leasehold.runtimes.aio import AsyncioRuntime
from leasehold.runtimes.base import Colour, Runtime, drive
from leasehold.runtimes.blocking import BlockingRuntime
from leasehold.stores import registry
from leasehold.stores.base import Opener, Store
from leasehold.validate import Meta, Seconds

RESPONSE_TIMEOUT = 5.0
"""Seconds after which a store that has not answered counts as unavailable."""

CLOSE_WITHIN = 2.0
"""Seconds that closing may take for what is still held and for the keeper's end."""


class AsyncClient:
    """Locks in one store, for asyncio. One client serves any number of tasks of one event loop.

    Example:
        ```python
        async with AsyncClient.from_url("redis://localhost:6379") as locks:
            async with locks.lock("stock:42") as hold:
                await sell(42, fence=hold.token)
        ```

    """

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
            store: what opens the store, as `from_url` and `from_client` make it.
            namespace: names of different namespaces never meet.
            response_timeout: seconds after which a store that has not answered counts as unavailable.
            observer: called with each event (see `leasehold.engine.events`); must not block.
            runtime: the world to run in; asyncio unless a test says otherwise.

        """
        runtime = AsyncioRuntime() if runtime is None else runtime
        opened = store.open(runtime, validate.name(namespace, "namespace"))
        self._engine = Engine(
            runtime,
            opened,
            response_timeout=validate.above_zero(response_timeout, "response_timeout", validate.LONGEST_ANSWER),
            observe=logged(observer),
        )
        self._reentries: Reentries = {}
        process.remember(self)

    @classmethod
    def from_url(
        cls,
        url: str | None = None,
        *,
        namespace: str = "default",
        response_timeout: Seconds = RESPONSE_TIMEOUT,
        observer: Observer | None = None,
    ) -> AsyncClient:
        """Make a client for the store at ``url``.

        Args:
            url: for example ``redis://localhost:6379/0``; None takes ``LEASEHOLD_URL`` from the environment, and
                without it SQLite in the user's state folder, which needs no server.

        Raises:
            ValueError: the URL is malformed, or its scheme or an option of it is unknown.
            MissingDriver: the message says what to install.

        """
        hidden = registry.hide(url)
        del url  # it may have a password, and a traceback's reader may show local variables
        return cls(registry.opener(hidden), namespace=namespace, response_timeout=response_timeout, observer=observer)

    @classmethod
    def from_client(
        cls,
        client: object,
        *,
        namespace: str = "default",
        response_timeout: Seconds = RESPONSE_TIMEOUT,
        observer: Observer | None = None,
    ) -> AsyncClient:
        """Make a client that reaches the store as an asyncio client object of yours does: a ``redis.asyncio.Redis``.

        Your object stays yours: it is neither used for commands nor closed; connections are made by its settings.
        """
        opener = registry.adopt(client, Colour.ASYNCIO)
        return cls(opener, namespace=namespace, response_timeout=response_timeout, observer=observer)

    @property
    def store(self) -> Store:
        """The store, for those who write their own primitives."""
        return self._engine.store

    @property
    def owner(self) -> str:
        """Who this client is to others: ``host:pid:client``."""
        return str(self._engine.owner)

    def lock(
        self,
        name: str,
        *,
        fair: bool = False,
        lease: Seconds = DEFAULT_LEASE,
        renew: bool = True,
        max_hold: Seconds | None = None,
        delay: Seconds = 0.0,
        timeout: Seconds | None = None,
        meta: Meta | None = None,
    ) -> AsyncLock:
        """Make an exclusive lock; it is not acquired yet.

        Args:
            name: 1 to 512 bytes of UTF-8, any characters.
            fair: nobody overtakes who came first, not even when a lease expired.
            lease: seconds for which the store keeps the lock without news of the holder.
            renew: False for a fixed lease, which ends however long the block takes.
            max_hold: seconds after which it is renewed no more.
            delay: seconds for which nobody gets the lock after this holder's lease *expired*: for resources that
                cannot check a token. A release frees it at once.
            timeout: seconds that ``with`` and `acquire` wait at most; None waits for ever.
            meta: shown to people who look: a text or a mapping, up to 1 KiB as JSON.

        """
        return AsyncLock(self._engine, *self._options(name, fair, lease, renew, max_hold, delay, timeout, meta))

    def rlock(
        self,
        name: str,
        *,
        fair: bool = False,
        lease: Seconds = DEFAULT_LEASE,
        renew: bool = True,
        max_hold: Seconds | None = None,
        delay: Seconds = 0.0,
        timeout: Seconds | None = None,
        meta: Meta | None = None,
    ) -> AsyncRLock:
        """Make a lock that its holder (the asyncio task, or the thread) may acquire again. Arguments as for `lock`."""
        options = self._options(name, fair, lease, renew, max_hold, delay, timeout, meta)
        return AsyncRLock(self._engine, *options, self._reentries)

    async def holds(self, prefix: str = "") -> list[LockInfo]:
        """Show all names that begin with ``prefix`` and are held, waited for or kept free, in order of name."""
        self._engine.ready()
        views = await self._engine.store.look(prefix)
        return sorted((LockInfo.of(view) for view in views), key=lambda info: info.name)

    async def inspect(self, name: str) -> LockInfo | None:
        """Show who holds ``name`` and who waits for it; None if nobody does."""
        self._engine.ready()
        views = await self._engine.store.look(validate.name(name), exact=True)
        return LockInfo.of(views[0]) if views else None

    async def break_(self, name: str, token: int) -> bool:
        """Take ``name`` from the holder that has ``token``, and from nobody else.

        The holder is told at its next renewal, or when it looks; its ``delay`` applies. The next holder has a higher
        token.

        Returns:
            Whether that holder was there.

        """
        self._engine.ready()
        for view in await self._engine.store.look(validate.name(name), exact=True):
            for seat in view.holders:
                if seat.token == token:
                    within = self._engine.response_timeout
                    return await self._engine.store.leave(name, seat.ticket, how=Departure.BREAK, within=within)
        return False

    async def diagnose(self) -> list[Finding]:
        """Look at the store's settings and say what they mean for the promises, as ``leasehold doctor`` does."""
        self._engine.ready()
        return await self._engine.store.diagnose()

    async def close(self) -> None:
        """Release what is still held, end the keeper, give back connections. Further calls do nothing."""
        await self._engine.close(CLOSE_WITHIN)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _options(
        self,
        name: str,
        fair: bool,
        lease: Seconds,
        renew: bool,
        max_hold: Seconds | None,
        delay: Seconds,
        timeout: Seconds | None,
        meta: Meta | None,
    ) -> tuple[str, Options]:
        options = Options.checked(
            self._engine,
            Rule(fair=bool(fair)),
            lease=lease,
            renew=renew,
            max_hold=max_hold,
            delay=delay,
            timeout=timeout,
            meta=meta,
        )
        return validate.name(name), options

    def _after_fork(self) -> None:
        self._reentries.clear()
        self._engine.after_fork()

    def __repr__(self) -> str:
        engine = getattr(self, "_engine", None)  # not there yet in the traceback of a refused argument
        return f"<{type(self).__name__} {None if engine is None else engine.store!r}>"


class Client:
    """Locks in one store, for threads. One client serves any number of threads, and a fork.

    Example:
        ```python
        with Client.from_url("redis://localhost:6379") as locks:
            with locks.lock("stock:42") as hold:
                sell(42, fence=hold.token)
        ```

    """

    def __init__(
        self,
        store: Opener,
        *,
        namespace: str = "default",
        response_timeout: Seconds = RESPONSE_TIMEOUT,
        observer: Observer | None = None,
    ) -> None:
        """Make a client; nothing is sent before the first use. Arguments as for `AsyncClient`."""
        self._core = AsyncClient(
            store,
            namespace=namespace,
            response_timeout=response_timeout,
            observer=observer,
            runtime=BlockingRuntime(),
        )
        process.close_at_exit(self)

    @classmethod
    def from_url(
        cls,
        url: str | None = None,
        *,
        namespace: str = "default",
        response_timeout: Seconds = RESPONSE_TIMEOUT,
        observer: Observer | None = None,
    ) -> Client:
        """Make a client for the store at ``url``. As `AsyncClient.from_url`."""
        hidden = registry.hide(url)
        del url  # it may have a password, and a traceback's reader may show local variables
        return cls(registry.opener(hidden), namespace=namespace, response_timeout=response_timeout, observer=observer)

    @classmethod
    def from_client(
        cls,
        client: object,
        *,
        namespace: str = "default",
        response_timeout: Seconds = RESPONSE_TIMEOUT,
        observer: Observer | None = None,
    ) -> Client:
        """Make a client that reaches the store as a blocking client object of yours does, for example ``redis.Redis``.

        Your object stays yours: it is neither used for commands nor closed; connections are made by its settings.
        """
        opener = registry.adopt(client, Colour.BLOCKING)
        return cls(opener, namespace=namespace, response_timeout=response_timeout, observer=observer)

    @property
    def store(self) -> Store:
        """The store, for those who write their own primitives."""
        return self._core.store

    @property
    def owner(self) -> str:
        """Who this client is to others: ``host:pid:client``."""
        return self._core.owner

    def lock(
        self,
        name: str,
        *,
        fair: bool = False,
        lease: Seconds = DEFAULT_LEASE,
        renew: bool = True,
        max_hold: Seconds | None = None,
        delay: Seconds = 0.0,
        timeout: Seconds | None = None,
        meta: Meta | None = None,
    ) -> Lock:
        """Make an exclusive lock; it is not acquired yet. Arguments as for `AsyncClient.lock`."""
        core = self._core.lock(
            name, fair=fair, lease=lease, renew=renew, max_hold=max_hold, delay=delay, timeout=timeout, meta=meta
        )
        return Lock(core)

    def rlock(
        self,
        name: str,
        *,
        fair: bool = False,
        lease: Seconds = DEFAULT_LEASE,
        renew: bool = True,
        max_hold: Seconds | None = None,
        delay: Seconds = 0.0,
        timeout: Seconds | None = None,
        meta: Meta | None = None,
    ) -> RLock:
        """Make a lock that its holder (the thread) may acquire again. Arguments as for `AsyncClient.lock`."""
        core = self._core.rlock(
            name, fair=fair, lease=lease, renew=renew, max_hold=max_hold, delay=delay, timeout=timeout, meta=meta
        )
        return RLock(core)

    def holds(self, prefix: str = "") -> list[LockInfo]:
        """Show all names that begin with ``prefix`` and are held, waited for or kept free, in order of name."""
        return drive(self._core.holds(prefix))

    def inspect(self, name: str) -> LockInfo | None:
        """Show who holds ``name`` and who waits for it; None if nobody does."""
        return drive(self._core.inspect(name))

    def break_(self, name: str, token: int) -> bool:
        """Take ``name`` from the holder that has ``token``, and from nobody else. As `AsyncClient.break_`."""
        return drive(self._core.break_(name, token))

    def diagnose(self) -> list[Finding]:
        """Look at the store's settings and say what they mean for the promises, as ``leasehold doctor`` does."""
        return drive(self._core.diagnose())

    def close(self) -> None:
        """Release what is still held, end the keeper, give back connections. Further calls do nothing."""
        drive(self._core.close())

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(getattr(self, "_core", None)).replace("<AsyncClient", "<Client", 1)
