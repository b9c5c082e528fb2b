"""Requests to an app in the same process, with a store in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from leasehold import AsyncClient
from leasehold.integrations.fastapi import add_exception_handlers, leasehold_lifespan
from leasehold.testing import TestClient


@dataclass(frozen=True, slots=True)
class Site:
    """An app to which a test adds endpoints, and the store of its locks."""

    app: FastAPI
    locks: TestClient

    @classmethod
    def new(cls, locks: TestClient) -> Site:
        app = FastAPI(lifespan=leasehold_lifespan(locks.async_client))
        add_exception_handlers(app)
        return cls(app, locks)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[tuple[httpx.AsyncClient, AsyncClient]]:
        """Start the app; connect to it, and to the store of its locks."""
        async with (
            self.app.router.lifespan_context(self.app),
            connected(self.app) as http,
            self.locks.async_client() as rival,
        ):
            yield http, rival


def connected(app: Any) -> httpx.AsyncClient:
    """Return a client of an app in this process."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop")


@pytest.fixture
def site() -> Any:
    with TestClient() as locks:
        yield Site.new(locks)


@dataclass(slots=True)
class Socket:
    """A WebSocket, as a server shows it to an app."""

    path: str
    sent: list[dict[str, Any]] = field(default_factory=list)
    received: list[dict[str, Any]] = field(default_factory=lambda: [{"type": "websocket.connect"}])

    @property
    def scope(self) -> dict[str, Any]:
        place = {"path": self.path, "raw_path": self.path.encode(), "query_string": b"", "root_path": ""}
        return {"type": "websocket", "headers": [], "subprotocols": [], "scheme": "ws", **place}

    async def receive(self) -> dict[str, Any]:
        return self.received.pop(0) if self.received else {"type": "websocket.disconnect", "code": 1000}

    async def send(self, message: Any) -> None:
        self.sent.append(message)
