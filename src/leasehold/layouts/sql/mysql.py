"""The layouts on MySQL and MariaDB."""

from __future__ import annotations

from typing import ClassVar

from leasehold._url import StoreURL
from leasehold.layouts.sql import medallion
from leasehold.layouts.sql.dialect import MYSQL
from leasehold.layouts.sql.opener import SharedRows, read
from leasehold.stores._common.names import before
from leasehold.stores.mysql import MySQL
from leasehold.stores.mysql.connection import settings
from leasehold.stores.mysql.connection.transport import MySQLTransport
from leasehold.stores.mysql.session import MySQLSessionStore


class MedallionStore(MySQLSessionStore):
    """Session locks with the names of Medallion."""

    def _lock(self, name: bytes) -> str:
        return medallion.mysql_name(before(self._space.decode()) + name.decode("utf-8", "surrogatepass"))


class Medallion(MySQL):
    """Opens them."""

    stores: ClassVar = {"session": f"{__name__}.MedallionStore"}


def from_url(url: StoreURL) -> SharedRows | Medallion:
    """Read ``mysql://…?layout=NAME``, or ``mariadb://``; see `opener.read` and `medallion.session_url`."""
    if url.options["layout"] == "medallion":
        return Medallion(settings.from_url(medallion.session_url(url), ("mode",)), "session")
    return read(url, MYSQL, settings.from_url, MySQLTransport)
