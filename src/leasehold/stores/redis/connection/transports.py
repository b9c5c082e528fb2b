"""Which transport a client of one server needs, by its runtime and settings."""

from __future__ import annotations

from leasehold._runtimes.base import Flavor, Runtime
from leasehold.errors import Unsupported
from leasehold.stores.redis.connection.aio import AioTransport
from leasehold.stores.redis.connection.base import MakeTransport, OnMessage, OnSilence, Transport
from leasehold.stores.redis.connection.blocking import BlockingTransport
from leasehold.stores.redis.connection.settings import Settings
from leasehold.stores.redis.connection.wait_connection import WaitTransport


def single_transport(runtime: Runtime) -> MakeTransport:
    """Return the factory of the transport to one server.

    Raises:
        Unsupported: the runtime is simulated; its servers are models.

    """
    if runtime.flavor is Flavor.SIMULATED:
        raise Unsupported("a real Redis cannot be reached from the simulated runtime; use a memory: store there")
    return BlockingTransport if runtime.flavor is Flavor.SYNC else _aio_transport


def _aio_transport(
    runtime: Runtime, settings: Settings, channel: bytes, on_message: OnMessage, on_silence: OnSilence
) -> Transport:
    """Make the asyncio transport that these settings need."""
    kind = AioTransport if settings.strict is None else WaitTransport
    return kind(runtime, settings, channel, on_message, on_silence)
