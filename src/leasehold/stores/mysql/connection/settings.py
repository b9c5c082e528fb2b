"""The settings of connections to one server, and how they are read from a URL: address, TLS, credentials."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

from leasehold._url import StoreURL, Veiled, address, is_local, switch
from leasehold.stores._sql.transport import Silent

PORT = 3306

SSL_OPTIONS = ("ssl", "ssl_ca", "ssl_cert", "ssl_key", "ssl_check_hostname")
URL_OPTIONS = ("unix_socket", *SSL_OPTIONS)

Connect = Callable[[], Any]
"""Makes a new connection of the driver, for us alone; awaitable if the driver is one of asyncio."""


@dataclass(frozen=True)
class Settings:
    """Address, credentials and options of a server. Its repr has no secret; `Veiled` cannot be pickled.

    Attributes:
        where: for messages to people: host, port and database.
        database: its name.
        options: ``host``, ``port``, ``unix_socket``, ``user``, ``password``, ``database``, ``ssl``, as the drivers name
            them.
        connect: makes the connections instead, by a user's own engine.
        silent: addresses of the host that did not answer in time.
    """

    where: str
    database: str
    options: Mapping[str, Any] = field(default_factory=Veiled, repr=False)
    connect: Connect | None = field(default=None, repr=False)
    silent: Silent[str] = field(default_factory=Silent[str], repr=False, compare=False)

    @property
    def local(self) -> bool:
        """Whether the connection does not leave this host."""
        return "unix_socket" in self.options or is_local(str(self.options.get("host", "")))

    @property
    def port(self) -> int:
        """The port of the server."""
        return int(self.options.get("port") or PORT)

    @property
    def name(self) -> str:
        """The host whose addresses must be looked up; empty if it is none."""
        host = str(self.options.get("host") or "")
        try:
            ip_address(host)
        except ValueError:
            return "" if self.connect is not None or "unix_socket" in self.options else host
        return ""


def from_url(url: StoreURL, known: tuple[str, ...] = ()) -> Settings:
    """Read ``mysql://user:password@host:3306/database`` or ``mariadb://…``; ``known`` are options of the caller.

    Raises:
        ValueError: a part is missing, or an option is wrong.
    """
    url.refuse_options((*URL_OPTIONS, *known))
    example = f"{url.scheme}://user:password@host:{PORT}/database"
    if len(url.hosts) > 1:
        raise ValueError(f"a {url.scheme} URL names one server, the primary; write {example}")
    if not url.hosts and "unix_socket" not in url.options:
        raise ValueError(f"the {url.scheme} URL names no host; write {example}")
    if not url.path or "/" in url.path:
        raise ValueError(f"the path of a {url.scheme} URL is the name of the database; write {example}")
    if not url.username:
        raise ValueError(f"the {url.scheme} URL names no user; write {example}")
    options = Veiled(user=url.username, database=url.path)
    if url.password is not None:
        options["password"] = url.password.reveal().encode()  # the drivers take text for latin1
    where = _address(url, options)
    context = _tls(url)
    if context is not None:
        options["ssl"] = context
    return Settings(f"{where}/{url.path}", url.path, options)


def _address(url: StoreURL, options: Veiled) -> str:
    socket = url.options.get("unix_socket")
    if socket is not None:
        if url.hosts or not socket.startswith("/") or "\0" in socket:
            raise ValueError(
                f"unix_socket is an absolute path, and the URL then has no host: {url.scheme}://user@/database"
                "?unix_socket=/run/mysqld/mysqld.sock"
            )
        options["unix_socket"] = socket
        return socket
    host, port = url.hosts[0]
    options.update(host=host, port=port or PORT)
    return address(host, port or PORT)


def _tls(url: StoreURL) -> ssl.SSLContext | None:
    """Return a context that verifies the server, None without TLS."""
    given = {key: url.options[key] for key in SSL_OPTIONS if key in url.options}
    encrypted, checked = switch(url, "ssl", "true"), switch(url, "ssl_check_hostname", "true")
    if not given or given == {"ssl": "false"}:
        return None
    if not encrypted or "unix_socket" in url.options:
        raise ValueError(f"the {url.scheme} URL has options for TLS and does not use it; leave them out")
    if "ssl_key" in given and "ssl_cert" not in given:
        raise ValueError(f"the {url.scheme} URL has 'ssl_key' without 'ssl_cert'; name both files")
    try:
        context = ssl.create_default_context(cafile=given.get("ssl_ca"))
        context.check_hostname = checked
        if "ssl_cert" in given:
            context.load_cert_chain(given["ssl_cert"], given.get("ssl_key"), password="")
        return context
    except (OSError, ValueError) as error:
        failed = f"{type(error).__name__}: {error}"
    raise ValueError(f"the files for TLS in the {url.scheme} URL cannot be used ({failed}); check their paths")
