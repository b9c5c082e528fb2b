"""Serves the console by itself, with uvicorn: what `leasehold ui` does."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from leasehold import AsyncClient
from leasehold.ui.console import app

LET_GO = 2  # seconds that open requests have when the server ends


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of the command; their text has no secret, so a traceback may show it."""

    url: str | None
    namespace: str
    allow_break: bool
    token: str | None
    every: float
    prefix: str
    hosts: Collection[str] | None

    def __repr__(self) -> str:
        return f"<Settings of {self.namespace!r}>"


def serve(settings: Settings, listener: socket.socket) -> None:
    """Serve until a signal."""
    asyncio.run(_serve(settings, listener))


async def _serve(settings: Settings, listener: socket.socket) -> None:
    async with AsyncClient.from_url(settings.url, namespace=settings.namespace) as client:
        server: uvicorn.Server | None = None
        console = app(
            client,
            allow_break=settings.allow_break,
            token=settings.token,
            every=settings.every,
            record=True,
            hosts=settings.hosts,
            ending=lambda: server is not None and server.should_exit,
        )
        served = console
        if settings.prefix:
            served = _mounted(console, settings.prefix)
        config = uvicorn.Config(served, log_level="error", access_log=False, timeout_graceful_shutdown=LET_GO)
        server = uvicorn.Server(config)
        await server.serve(sockets=[listener])


def _mounted(console: Starlette, prefix: str) -> Starlette:
    """Put the console below a prefix, with its lifespan: that of a mounted app does not run by itself."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with console.router.lifespan_context(console):
            yield

    return Starlette(routes=[Mount(prefix, console)], lifespan=lifespan)
