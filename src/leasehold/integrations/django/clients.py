"""The clients of ``settings.LEASEHOLD``: `locks` for threads, `alocks` for asyncio.

Theory of operation:

* A client is made at the first use of its alias. Settings may be imported anywhere, and nothing is sent by an import.
* A blocking client serves all threads, and forked children: it starts anew in a child. So gunicorn may fork workers
  after the application was loaded. It is closed when the interpreter ends.
* An asyncio client belongs to one event loop. Under ASGI that is one for each process. Under WSGI an async view gets a
  loop for each request. So there is one client for each loop and alias, closed when its loop ends: an async generator
  is started in the loop, and both `asyncio.run` and Django's `async_to_sync` close such before they close the loop.
  A loop that was closed without that is forgotten when the next one begins; its connections close with its clients.
"""
# pyright: basic
# (Django has no types)

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from django.core.signals import setting_changed

from leasehold import AsyncClient, Client
from leasehold.integrations.django import conf

if TYPE_CHECKING:  # what they forward to
    from leasehold import AsyncClient as Asyncio
    from leasehold import Client as Blocking
else:
    Blocking = Asyncio = object


class _ByAlias:
    """What both flavors have: the aliases, and all else from the client of the alias ``default``."""

    def __iter__(self) -> Iterator[str]:
        return iter(conf.aliases())

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return getattr(self[conf.DEFAULT], name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(conf.aliases())}>"


class Locks(_ByAlias, Blocking):
    """The blocking clients by alias. All methods of `leasehold.Client` are those of the alias ``default``.

    Example:
        <!-- not run: it needs the settings of a project -->
        ```python
        from leasehold.integrations.django import locks

        with locks.lock("order:42", timeout=2) as hold: ...
        with locks["other"].lock("order:42"): ...
        ```
    """

    def __init__(self) -> None:
        self._clients: dict[str, Client] = {}

    def __getitem__(self, alias: str) -> Client:
        """Return the client of an alias.

        Raises:
            ImproperlyConfigured: ``LEASEHOLD`` has no such alias, or its settings are wrong.
        """
        found = self._clients.get(alias)
        if found is None:
            store = conf.store_settings(alias)
            made = Client.from_url(store.url, **store.options)  # type: ignore[arg-type]  # a hidden URL
            found = self._clients.setdefault(alias, made)  # without a lock, which another thread may hold while we fork
            if found is not made:
                made.close()
        return found

    def close_all(self) -> None:
        """Close all clients of this process; the next use makes them anew."""
        while self._clients:
            self._clients.popitem()[1].close()


class AsyncLocks(_ByAlias, Asyncio):
    """The asyncio clients of the running event loop by alias; the methods are those of the alias ``default``.

    Example:
        <!-- not run: it needs the settings of a project -->
        ```python
        from leasehold.integrations.django import alocks

        async with alocks.lock("order:42", timeout=2) as hold: ...
        ```
    """

    def __init__(self) -> None:
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _OfLoop] = WeakKeyDictionary()

    def __getitem__(self, alias: str) -> AsyncClient:
        """Return the client of an alias for the running event loop.

        Raises:
            ImproperlyConfigured: ``LEASEHOLD`` has no such alias, or its settings are wrong.
            RuntimeError: no event loop runs.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError(
                "alocks is for async views, and no event loop runs here; use locks in blocking code"
            ) from None
        clients = self._loops.get(loop)
        if clients is None:
            with suppress(RuntimeError):  # another thread's loop came meanwhile; the next one looks again
                for closed in [each for each in list(self._loops) if each.is_closed()]:
                    self._drop(closed)
            clients = self._loops[loop] = _OfLoop(self, loop)
        return clients.client(alias)

    async def close_all(self) -> None:
        """Close all clients of the running event loop; the next use makes them anew."""
        clients = self._loops.get(asyncio.get_running_loop())
        if clients is not None:
            await clients.close()

    def _forget(self) -> None:
        """Make all clients anew at their next use; those of now are closed at the end of their loops."""
        for clients in list(self._loops.values()):
            clients.forget()

    def _drop(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loops.pop(loop, None)


class _OfLoop:
    """The clients of one event loop, which are closed at its end."""

    def __init__(self, owner: AsyncLocks, loop: asyncio.AbstractEventLoop) -> None:
        self._by_alias: dict[str, AsyncClient] = {}
        self._made: list[AsyncClient] = []
        self._closer = _at_the_end(owner, loop, self._made)
        with suppress(StopIteration):  # it stops at its first yield, without waiting; the loop knows it from now on
            self._closer.__anext__().send(None)

    def client(self, alias: str) -> AsyncClient:
        found = self._by_alias.get(alias)
        if found is None:
            store = conf.store_settings(alias)
            found = AsyncClient.from_url(store.url, **store.options)  # type: ignore[arg-type]  # a hidden URL
            self._by_alias[alias] = found
            self._made.append(found)
        return found

    def forget(self) -> None:
        self._by_alias.clear()

    async def close(self) -> None:
        self._by_alias.clear()
        while self._made:
            await self._made.pop().close()


async def _at_the_end(
    owner: AsyncLocks, loop: asyncio.AbstractEventLoop, made: list[AsyncClient]
) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        owner._drop(loop)  # the clients refer to the loop, which would never be freed
        while made:
            await made.pop().close()


locks = Locks()
"""The blocking clients of ``settings.LEASEHOLD``."""

alocks = AsyncLocks()
"""The asyncio clients of ``settings.LEASEHOLD``."""


def _changed(*, setting: str, **_: object) -> None:
    if setting in ("LEASEHOLD", "DATABASES"):
        locks.close_all()
        alocks._forget()


setting_changed.connect(_changed)  # sent by `override_settings` in tests
