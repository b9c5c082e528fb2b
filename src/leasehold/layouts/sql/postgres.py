"""The layouts on PostgreSQL."""

from __future__ import annotations

from typing import ClassVar

from leasehold._runtimes.base import Flavor, Runtime
from leasehold._url import StoreURL
from leasehold.layouts.sql import medallion
from leasehold.layouts.sql.dialect import POSTGRES
from leasehold.layouts.sql.opener import SharedRows, read
from leasehold.stores._common.names import before
from leasehold.stores._sql.transport import SQLTransport
from leasehold.stores.postgres import Postgres, advisory
from leasehold.stores.postgres.connection import settings
from leasehold.stores.postgres.connection.aio import AioTransport
from leasehold.stores.postgres.connection.blocking import BlockingTransport
from leasehold.stores.postgres.connection.settings import Settings
from leasehold.stores.postgres.session import SessionStore


class MedallionStore(SessionStore):
    """Session locks with the keys of Medallion."""

    def _lock_key(self, name: str) -> advisory.Key:
        return advisory.Key(*medallion.postgres_key(before(self._namespace) + name))


class Medallion(Postgres):
    """Opens them."""

    stores: ClassVar = {"session": f"{__name__}.MedallionStore"}


def from_url(url: StoreURL) -> SharedRows | Medallion:
    """Read ``postgresql://…?layout=NAME``; see `opener.read` and `medallion.session_url` for what it raises."""
    if url.options["layout"] == "medallion":
        return Medallion(settings.from_url(medallion.session_url(url)), "session")
    return read(url, POSTGRES, settings.from_url, _connect)


def _connect(runtime: Runtime, there: Settings) -> SQLTransport:
    make = BlockingTransport if runtime.flavor is Flavor.SYNC else AioTransport
    return make(runtime, there, lambda text: None, lambda: None)
