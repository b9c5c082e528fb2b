"""What opens, inspects and closes the blocking client: a facade over an asyncio client in the blocking runtime."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from leasehold._inspection import LockInfo
from leasehold._model import RESPONSE_TIMEOUT, Finding
from leasehold._runtimes import process
from leasehold._runtimes.base import Flavor, run_sync
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold._validate import Seconds
from leasehold.client.aio import AsyncClient
from leasehold.client.aio_base import no_opener
from leasehold.events import Observer
from leasehold.store_api import Opener, Store
from leasehold.stores import registry


class ClientBase:
    """One connection to one store, for threads."""

    def __init__(
        self,
        store: Opener,
        *,
        namespace: str = "default",
        response_timeout: Seconds = RESPONSE_TIMEOUT,
        observer: Observer | None = None,
    ) -> None:
        """Make a client; nothing is sent before the first use.

        Args:
            store: what opens the store: a `leasehold.store_api.Opener`, as `from_url` makes one.
            namespace: names of different namespaces never collide; 1 to 512 bytes of UTF-8.
            response_timeout: seconds after which a store that has not answered counts as unavailable.
            observer: called with each event (see `leasehold.events`); it must not block.

        Raises:
            ValueError, TypeError: a value is out of its bounds.
        """
        if not hasattr(store, "open"):
            wrong = type(store).__name__
            del store  # a URL may have a password, and a traceback's reader may show local variables
            raise no_opener(type(self), wrong)
        self._core = AsyncClient(
            store, namespace=namespace, response_timeout=response_timeout, observer=observer, runtime=BlockingRuntime()
        )
        process.close_at_exit(self._core._engine)

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
            The client, to be closed by ``with`` or `close`.

        Raises:
            ValueError: the URL is malformed, or its scheme or an option of it is unknown; or ``namespace`` or
                ``response_timeout`` (above 0 to 3600 s) is out of its bounds.
            TypeError: a value has the wrong type.
            MissingDriver: the message says what to install.
        """
        hidden = registry.hide(url)
        del url  # it may have a password, and a traceback's reader may show local variables
        made = cls(registry.opener(hidden), namespace=namespace, response_timeout=response_timeout, observer=observer)
        made._core._engine.origin = (registry.shown(hidden), namespace)
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
        """Make a client that connects to the store as a blocking client object of yours does.

        Your object stays yours: it is neither used for commands nor closed; connections are made by its settings.

        Args:
            client: for example a ``redis.Redis``; a list of them are the nodes of a Redlock.
            strict: the options of strict mode, for clients of Redis, Sentinel and Cluster.
            namespace: names of different namespaces never collide; 1 to 512 bytes of UTF-8.
            response_timeout: seconds after which a store that has not answered counts as unavailable.
            observer: called with each event (see `leasehold.events`); it must not block.

        Returns:
            The client, to be closed by ``with`` or `close`.

        Raises:
            TypeError: ``client`` is of an unknown class or of the other flavor, or its store has no strict mode; or a
                value has the wrong type.
            ValueError: the client's settings lack what locks need, as the name of a database, or they cannot be
                repeated for another connection; or ``namespace`` or ``response_timeout`` is out of its bounds.
            Unsupported: the store cannot be used for locks in the way in which the client connects to it.
            MissingDriver: the message says what to install.
        """
        opener = registry.adopt(client, Flavor.SYNC, strict=strict)
        return cls(opener, namespace=namespace, response_timeout=response_timeout, observer=observer)

    @property
    def store(self) -> Store:
        """The store, for those who write their own primitives."""
        return self._core.store

    @property
    def owner(self) -> str:
        """How this client is shown to others: ``host:pid:client``."""
        return self._core.owner

    def holds(self, prefix: str = "") -> list[LockInfo]:
        """Return all names that begin with ``prefix`` and are held, waited for or kept free, in order of name.

        Raises:
            StoreUnavailable: the store did not answer.
        """
        return run_sync(self._core.holds(prefix))

    def inspect(self, name: str) -> LockInfo | None:
        """Return the holders of ``name`` and its waiters; None if there are none.

        Raises:
            StoreUnavailable: the store did not answer.
            ValueError, TypeError: the name is out of its bounds.
        """
        return run_sync(self._core.inspect(name))

    def force_release(self, name: str, token: int) -> bool:
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
        return run_sync(self._core.force_release(name, token))

    def ping(self) -> None:
        """Check that the store answers and takes requests for locks, for a readiness probe; nothing is changed.

        It sends one request to where locks are acquired: a primary (of a cluster, one of them), a majority of a
        Redlock, a file that it may write. It takes no lock, so what others hold is no obstacle.

        Raises:
            StoreUnavailable: the store did not answer within ``response_timeout``, or takes no request for locks; where
                it said why, as with a missing right or table, this is a `StoreRefused`.
            Unsupported: the server answered, and cannot promise locks: too old, of another kind, a network file system.
            RuntimeError: the client is closed.
        """
        run_sync(self._core.ping())

    def diagnose(self) -> list[Finding]:
        """Return what the store's settings mean for the promises, as ``leasehold doctor`` shows it.

        Raises:
            StoreUnavailable: the store did not answer.
        """
        return run_sync(self._core.diagnose())

    def close(self) -> None:
        """End what is still held, release it, and close the connections, in about two seconds at most.

        A hold that is still held ends as a loss, before another client can acquire: its ``on_lost`` callbacks are
        called, and ``raise_if_lost`` and the end of its block raise `LeaseLost`. Later calls on the client and its
        objects raise RuntimeError. A further `close` does nothing.
        """
        run_sync(self._core.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> str:
        raise TypeError("the client cannot be copied or sent to another process; make a new one there")

    def __repr__(self) -> str:
        return repr(getattr(self, "_core", None)).replace("<AsyncClient", "<Client", 1)
