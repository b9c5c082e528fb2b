"""The settings of connections to one database, and how they are read from a URL."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from psycopg.conninfo import make_conninfo

from leasehold._url import Secret, StoreURL, Veiled, is_local

LIBPQ_OPTIONS = (
    *("sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "sslnegotiation", "ssl_min_protocol_version"),
    *("target_session_attrs", "load_balance_hosts", "channel_binding", "require_auth", "passfile", "service"),
    *("gssencmode", "krbsrvname", "host", "port", "user", "dbname", "application_name", "hostaddr"),
)
"""Options that a URL may have as libpq names them (postgresql.org/docs/current/libpq-connect.html)."""

OURS: Mapping[str, str] = {
    "keepalives": "1",
    "keepalives_idle": "10",
    "keepalives_interval": "3",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
    "client_encoding": "UTF8",
}
"""Settings of every connection: a dead network is noticed in about 20 s."""

CHECKS = {
    "pool": (r"0*([1-9][0-9]{0,2}|1000)", "a number from 1 to 1000"),
    "messages": (r"[01]", "1 or 0"),
    "pooler": (r"session", "session, or left out"),
}
"""What the values of our own options match, and how that is said."""

POOL = 8
"""Maximum number of connections of a client, besides that for messages and that reserved for renewals."""


@dataclass(frozen=True)
class Settings:
    """Address, credentials and options of a database. Its repr has no secret; `Veiled` cannot be pickled.

    Attributes:
        where: for messages to people: hosts, ports and database.
        options: libpq's keywords.
        pool: maximum number of connections.
        messages: whether to listen for messages; False polls, as behind a transaction pooler.
        trust_pooler: whether a pooler in between keeps each session for one client.
        subscriptions: settings of the connection for messages, which reach the same database past a pooler.
    """

    where: str
    options: Mapping[str, Any] = field(default_factory=Veiled, repr=False)
    pool: int = POOL
    messages: bool = True
    trust_pooler: bool = False
    subscriptions: Settings | None = None

    @property
    def local(self) -> bool:
        """Whether the connection does not leave this host."""
        hosts = str(self.options.get("host") or self.options.get("hostaddr") or "localhost").split(",")
        return all(is_local(host) or host.startswith(("/", "@")) for host in hosts)

    def conninfo(self, **more: str) -> Secret:
        """Return libpq's connection string."""
        options = Veiled({**OURS, **self.options, **more})
        options.setdefault("application_name", "leasehold")
        return Secret(make_conninfo("", **options))


def from_url(url: StoreURL) -> Settings:
    """Read ``postgresql://user:password@host:port/database?option=value``.

    Raises:
        ValueError: an option is unknown, or its value wrong.
    """
    url.refuse_options((*LIBPQ_OPTIONS, *CHECKS, "mode", "listen"))
    options = Veiled((key, value) for key, value in url.options.items() if key in LIBPQ_OPTIONS)
    if not url.hosts and url.path and not url.path.startswith("/"):
        raise ValueError(f"a {url.scheme} URL has two slashes before its host; write {url.scheme}://localhost/database")
    if url.hosts:
        options["host"] = ",".join(host for host, _ in url.hosts)
        if any(port is not None for _, port in url.hosts):
            options["port"] = ",".join(str(port or 5432) for _, port in url.hosts)
    if url.username:
        options["user"] = url.username
    if url.password is not None:
        options["password"] = url.password.reveal()
    path = url.path if url.hosts else url.path.lstrip("/")
    if path:
        options["dbname"] = path
    for key, (pattern, words) in CHECKS.items():
        if key in url.options and not re.fullmatch(pattern, url.options[key]):
            raise ValueError(f"option {key!r} in the {url.scheme} URL is {words}")
    pool, messages = int(url.options.get("pool", POOL)), url.options.get("messages") != "0"
    found = Settings(display_address(options), options, pool, messages, "pooler" in url.options)
    return replace(found, subscriptions=_direct_settings(url, options)) if "listen" in url.options else found


def _direct_settings(url: StoreURL, options: Mapping[str, Any]) -> Settings:
    """Read ``listen=host:port``; all other settings are those of the URL."""
    host, port = parse_address(url.options["listen"])
    if not host or url.options.get("messages") == "0":
        raise ValueError(
            f"option 'listen' in the {url.scheme} URL is host:port of the server itself, and needs messages"
        )
    there = Veiled(options)
    there.pop("hostaddr", None)
    there.update(host=host, port=port)
    return Settings(display_address(there), there)


def parse_address(text: str) -> tuple[str, str]:
    """Read ``host:port``, ``[::1]:port``, or the folder of a socket; an empty host if it is none of these."""
    if text.startswith("/"):
        return text, "5432"
    host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    host, port = (host, port) if colon else (text, "5432")
    if not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        return "", ""
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    return ("", "") if not bare or "," in bare or (":" in bare and bare == host) else (bare, port)


def display_address(options: Mapping[str, Any]) -> str:
    """Return the address of the database, for people."""
    hosts = str(options.get("host") or options.get("hostaddr") or "localhost").split(",")
    ports = str(options.get("port") or "5432").split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    places = ",".join(
        host if host.startswith("/") else f"{f'[{host}]' if ':' in host else host}:{port}"
        for host, port in zip(hosts, ports, strict=False)
    )
    return f"{places}/{options['dbname']}" if options.get("dbname") else places
