"""How to reach one Redis server, and redis-py's part in it: addresses, TLS, passwords, the handshake."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry

from leasehold.errors import StoreUnavailable, Unsupported
from leasehold.runtimes.base import Colour
from leasehold.stores.url import StoreURL
from leasehold.wires.redis.base import REMEDIES, ReplyError

OLDEST = (6, 2)
"""Oldest server that has all commands used (``ZADD LT``)."""

URL_OPTIONS: Mapping[str, Callable[[str], Any]] = {
    "db": int,
    "ssl_ca_certs": str,
    "ssl_ca_path": str,
    "ssl_certfile": str,
    "ssl_keyfile": str,
    "ssl_check_hostname": lambda text: {"true": True, "false": False}[text],
}
"""Options that a URL may have, as redis-py names them."""

KEPT = (
    "host", "port", "path", "db", "username", "password", "credential_provider", "socket_keepalive",
    "socket_keepalive_options", "socket_type", "ssl_keyfile", "ssl_certfile", "ssl_cert_reqs", "ssl_ca_certs",
    "ssl_ca_data", "ssl_ca_path", "ssl_check_hostname", "ssl_password", "ssl_min_version", "ssl_ciphers",
    "ssl_validate_ocsp", "ssl_validate_ocsp_stapled", "ssl_ocsp_context", "ssl_ocsp_expected_cert",
    "ssl_include_verify_flags", "ssl_exclude_verify_flags",
)  # fmt: skip
"""Settings of a user's client that ours take over: how to get there and who we are, not how to retry or parse."""


@dataclass(frozen=True)
class Settings:
    """Where the server is and how to speak to it. Its repr has no secret.

    Attributes:
        where: for messages to people: host and port, or the socket's path.
        kind: ``tcp``, ``tls`` or ``unix``, for those made from a URL.
        options: keyword arguments of redis-py's connections.
        classes: the connection class of a user's own client, by colour.
    """

    where: str
    kind: str = "tcp"
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    classes: Mapping[Colour, type[Any]] = field(default_factory=dict, repr=False)

    def connection(self, colour: Colour, within: float) -> Any:
        """Make a connection of redis-py that is not connected yet and will not retry by itself."""
        options = dict(self.options)
        options.update(
            retry=Retry(NoBackoff(), 0),
            socket_timeout=within,
            socket_connect_timeout=within,
            health_check_interval=0,
            protocol=3,
            driver_info=None,
            maint_notifications_config=MaintNotificationsConfig(enabled=False),
        )
        cls = self.classes.get(colour) or _CLASSES[self.kind, colour]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return cls(**options)


_CLASSES: Mapping[tuple[str, Colour], type[Any]] = {
    ("tcp", Colour.BLOCKING): redis.Connection,
    ("tls", Colour.BLOCKING): redis.SSLConnection,
    ("unix", Colour.BLOCKING): redis.UnixDomainSocketConnection,
    ("tcp", Colour.ASYNCIO): redis.asyncio.Connection,
    ("tls", Colour.ASYNCIO): redis.asyncio.SSLConnection,
    ("unix", Colour.ASYNCIO): redis.asyncio.UnixDomainSocketConnection,
}


def from_url(url: StoreURL) -> Settings:
    """Read ``redis://``, ``rediss://``, ``unix://`` and the same of Valkey.

    Raises:
        ValueError: an option or the database number is wrong.
    """
    url.refuse_options(tuple(URL_OPTIONS))
    options: dict[str, Any] = {}
    for key, text in url.options.items():
        try:
            options[key] = URL_OPTIONS[key](text)
        except (ValueError, KeyError):
            raise ValueError(f"option {key!r} in the {url.scheme} URL has a value that it cannot have") from None
    if url.username:
        options["username"] = url.username
    if url.password is not None:
        options["password"] = url.password.reveal()
    if url.scheme == "unix":
        return _unix(url, options)
    if len(url.hosts) > 1:
        raise ValueError(f"a {url.scheme} URL names one server; several are for Sentinel, Cluster and Redlock URLs")
    host, port = url.hosts[0] if url.hosts else ("localhost", None)
    options.update(host=host, port=port or 6379)
    if url.path:
        if not (url.path.isascii() and url.path.isdecimal()):
            raise ValueError(f"the path of a {url.scheme} URL is the number of the database, as in redis://host:6379/0")
        options["db"] = int(url.path)
    kind = "tls" if url.scheme in ("rediss", "valkeys") else "tcp"
    if kind == "tcp" and any(key.startswith("ssl_") for key in options):
        raise ValueError(f"a {url.scheme} URL has no TLS; write rediss:// for the ssl_ options to apply")
    return Settings(f"{host}:{port or 6379}", kind, options)


def _unix(url: StoreURL, options: dict[str, Any]) -> Settings:
    path = "/" + url.path.lstrip("/")
    if url.hosts or path == "/":
        raise ValueError("a unix URL is written unix:///path/to/redis.sock, with three slashes")
    options["path"] = path
    return Settings(path, "unix", options)


def from_client(client: Any, colour: Colour) -> Settings:
    """Take over how a client object of redis-py reaches its server.

    Raises:
        TypeError: it is of the other colour, or not a client of one server.
    """
    asynchronous = isinstance(client, redis.asyncio.Redis)
    if not asynchronous and not isinstance(client, redis.Redis):
        raise TypeError(f"cannot make locks from a {type(client).__name__}; pass a redis.Redis or redis.asyncio.Redis")
    if asynchronous is not (colour is Colour.ASYNCIO):
        wanted = "Client with redis.Redis, AsyncClient with redis.asyncio.Redis"
        raise TypeError(f"a {type(client).__module__}.Redis does not fit this client; use {wanted}")
    pool = client.connection_pool
    options = {key: pool.connection_kwargs[key] for key in KEPT if key in pool.connection_kwargs}
    where = options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"
    return Settings(str(where), "tcp", options, {colour: pool.connection_class})


def check_handshake(said: Any, where: str) -> dict[str, str]:
    """Check what the server said of itself to HELLO, and return it.

    Raises:
        Unsupported: it is too old.
        StoreUnavailable: it is a replica. No decision is ever taken from one.
    """
    if isinstance(said, ReplyError):
        raise connect_error(said, where)
    facts = {_text(key): _text(value) for key, value in said.items()}
    version = facts.get("version", "0")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers < OLDEST:
        needed = ".".join(map(str, OLDEST))
        raise Unsupported(f"the server at {where} is version {version}; locks need Redis {needed} or later, or Valkey")
    if facts.get("role", "master") not in ("master", "primary"):
        raise StoreUnavailable(f"the server at {where} is a replica; {REMEDIES['READONLY']}")
    return facts


def connect_error(error: Exception, where: str) -> StoreUnavailable | Unsupported:
    """Say why there is no connection. Nothing was sent."""
    text = str(error)
    if "unknown command" in text.lower() and "HELLO" in text:
        return Unsupported(f"the server at {where} does not know HELLO; locks need Redis 6.2 or later, or Valkey")
    code = text.partition(" ")[0]
    if isinstance(error, redis.exceptions.AuthenticationError):
        code = "WRONGPASS" if "WRONGPASS" in text or "invalid" in text.lower() else "NOAUTH"
    hint = REMEDIES.get(code, "")
    return StoreUnavailable(f"cannot connect to Redis at {where}: {text}" + (f"; {hint}" if hint else ""))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
