"""The URL of a store in one of Django's own databases: ``{"DATABASE": "default"}``."""
# pyright: basic
# (Django has no types)

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.connection import ConnectionDoesNotExist

from leasehold._url import Secret

OF_DJANGO = {
    "postgresql": ("pool", "server_side_binding", "isolation_level", "assume_role", "connect_timeout", "options"),
    "mysql": ("charset", "isolation_level", "init_command", "sql_mode", "connect_timeout", "autocommit"),
}
"""``OPTIONS`` that concern Django's own connections, and not where the server is or how it is reached."""

LIBPQ = (
    *("sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "target_session_attrs", "channel_binding"),
    *("gssencmode", "krbsrvname", "service", "passfile", "application_name", "require_auth"),
)


def url_of(where: str, alias: Any) -> Secret:
    """Return the URL of a database in ``DATABASES``; of the test database while tests run.

    Raises:
        ImproperlyConfigured: there is none, or leasehold cannot use it by its settings.
    """
    try:
        connection = connections[alias]
    except ConnectionDoesNotExist:
        raise ImproperlyConfigured(f"{where}['DATABASE']: DATABASES has no {alias!r}") from None
    if connection.vendor not in OF_DJANGO:
        raise ImproperlyConfigured(
            f"{where}['DATABASE']: {alias!r} is on {connection.vendor}, and leasehold needs PostgreSQL, MySQL or "
            "MariaDB there; write 'URL', for example 'sqlite:/var/lib/app/locks.db'"
        )
    make = _postgresql if connection.vendor == "postgresql" else _mysql
    return make(f"{where}['DATABASE']", alias, connection.settings_dict)


def _postgresql(where: str, alias: str, given: Any) -> Secret:
    options = _options(where, alias, "postgresql", given, LIBPQ)
    if given["HOST"]:
        return _joined("postgresql", given, _address(given), options)
    if given["PASSWORD"]:
        raise ImproperlyConfigured(f"{where}: {alias!r} has a 'PASSWORD' and no 'HOST'; name the host, or write 'URL'")
    options.update({name: str(given[key]) for name, key in (("user", "USER"), ("port", "PORT")) if given[key]})
    return _joined("postgresql", {**given, "USER": ""}, "", options)


def _mysql(where: str, alias: str, given: Any) -> Secret:
    options = _options(where, alias, "mysql", given, ("ssl",))
    tls = options.pop("ssl", None)
    if isinstance(tls, dict) and set(tls) <= {"ca", "cert", "key"}:
        options.update({f"ssl_{key}": value for key, value in tls.items()})
    elif tls:
        raise ImproperlyConfigured(f"{where}: leasehold does not know the OPTIONS['ssl'] of {alias!r}; write 'URL'")
    if str(given["HOST"]).startswith("/"):
        options["unix_socket"] = given["HOST"]
        return _joined("mysql", given, "", options)
    return _joined("mysql", given, _address({**given, "HOST": given["HOST"] or "localhost"}), options)


def _options(where: str, alias: str, vendor: str, given: Any, copied: tuple[str, ...]) -> dict[str, Any]:
    kept = {}
    for key, value in (given.get("OPTIONS") or {}).items():
        if key in copied:
            kept[key] = value
        elif key not in OF_DJANGO[vendor]:
            raise ImproperlyConfigured(
                f"{where}: leasehold does not know what OPTIONS[{key!r}] of {alias!r} means for it; write 'URL'"
            )
    return kept


def _address(given: Any) -> str:
    host = str(given["HOST"])
    host = f"[{host}]" if ":" in host and not host.startswith(("[", "/")) else quote(host, safe="[]:,")
    return f"{host}:{given['PORT']}" if given["PORT"] else host


def _joined(scheme: str, given: Any, address: str, options: dict[str, Any]) -> Secret:
    user = quote(str(given["USER"]), safe="")
    if given["PASSWORD"]:
        user += f":{quote(str(given['PASSWORD']), safe='')}"
    query = f"?{urlencode(options, quote_via=quote)}" if options else ""
    return Secret(f"{scheme}://{user}{'@' if user else ''}{address}/{quote(str(given['NAME']), safe='')}{query}")
