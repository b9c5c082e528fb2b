"""The client: one store, and a method for each primitive. `AsyncClient` awaits, `Client` blocks."""

from leasehold.client.aio import AsyncClient
from leasehold.client.blocking import Client

__all__ = ["AsyncClient", "Client"]
