"""The layouts on MySQL and MariaDB."""

from __future__ import annotations

from leasehold._url import StoreURL
from leasehold.layouts.sql.dialect import MYSQL
from leasehold.layouts.sql.opener import SharedRows, read
from leasehold.stores.mysql.connection import settings
from leasehold.stores.mysql.connection.transport import MySQLTransport


def from_url(url: StoreURL) -> SharedRows:
    """Read ``mysql://…?layout=NAME`` or ``mariadb://…?layout=NAME``; see `opener.read` for what it raises."""
    return read(url, MYSQL, settings.from_url, MySQLTransport)
