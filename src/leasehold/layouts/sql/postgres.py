"""The layouts on PostgreSQL."""

from __future__ import annotations

from leasehold._runtimes.base import Flavor, Runtime
from leasehold._url import StoreURL
from leasehold.layouts.sql.dialect import POSTGRES
from leasehold.layouts.sql.opener import SharedRows, read
from leasehold.stores._sql.transport import SQLTransport
from leasehold.stores.postgres.connection import settings
from leasehold.stores.postgres.connection.aio import AioTransport
from leasehold.stores.postgres.connection.blocking import BlockingTransport
from leasehold.stores.postgres.connection.settings import Settings


def from_url(url: StoreURL) -> SharedRows:
    """Read ``postgresql://…?layout=NAME``; see `opener.read` for what it raises."""
    return read(url, POSTGRES, settings.from_url, _connect)


def _connect(runtime: Runtime, there: Settings) -> SQLTransport:
    make = BlockingTransport if runtime.flavor is Flavor.SYNC else AioTransport
    return make(runtime, there, lambda text: None, lambda: None)
