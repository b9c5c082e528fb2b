"""How to reach one Redis server by redis-py: address, TLS, password, handshake."""

from __future__ import annotations

import functools
import inspect
import socket
import ssl
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import redis
import redis.asyncio
import redis.exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from leasehold._runtimes.base import Flavor
from leasehold._url import StoreURL, Veiled, address, is_local
from leasehold.errors import StoreUnavailable, Unsupported
from leasehold.stores._common.answers import with_remedy
from leasehold.stores.redis.connection.base import (
    BY_CLUSTER,
    BY_SENTINEL,
    REMEDIES,
    SILENCE,
    HandshakeAborted,
    ReplyError,
    RetryableError,
    refused,
    version_of,
)
from leasehold.stores.redis.strict.quorum import Strict

OLDEST = (6, 2)
"""The oldest server that has all commands used (``ZADD LT``)."""

LEAST_ATTEMPT = 1.0
"""Seconds: at least so long, if there are so many, an attempt to connect takes where a successor may come meanwhile."""

URL_OPTIONS: Mapping[str, Callable[[str], Any]] = {
    "db": lambda text: _database(text),
    "ssl_ca_certs": lambda text: _file(text),
    "ssl_ca_path": lambda text: _file(text),
    "ssl_certfile": lambda text: _file(text),
    "ssl_keyfile": lambda text: _file(text),
    "ssl_check_hostname": lambda text: {"true": True, "false": False}[text],
}
"""Options of a URL, named as in redis-py, and how their values are read."""

KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 3, "TCP_KEEPCNT": 3}
"""Seconds, seconds, and a count: else firewalls forget a connection that is idle for minutes. As on PostgreSQL."""

KEPT = (
    "host", "port", "path", "db", "username", "password", "credential_provider", "socket_keepalive",
    "socket_keepalive_options", "socket_type", "ssl_keyfile", "ssl_certfile", "ssl_cert_reqs", "ssl_ca_certs",
    "ssl_ca_data", "ssl_ca_path", "ssl_check_hostname", "ssl_password", "ssl_min_version", "ssl_ciphers",
    "ssl_validate_ocsp", "ssl_validate_ocsp_stapled", "ssl_ocsp_context", "ssl_ocsp_expected_cert",
    "ssl_include_verify_flags", "ssl_exclude_verify_flags",
)  # fmt: skip
"""Settings taken from a user's own client: address and identity, not how to retry or parse."""


@dataclass(frozen=True)
class Settings:
    """Where the server is and how to connect to it. Its repr has no secret; `Veiled` cannot be pickled."""

    where: str  # for messages to people: host and port, or the socket's path
    kind: str = "tcp"  # or "tls", "unix", if made from a URL
    options: Mapping[str, Any] = field(
        default_factory=Veiled, repr=False
    )  # keyword arguments of redis-py's connections
    classes: Mapping[Flavor, type[Any]] = field(default_factory=dict[Flavor, type[Any]], repr=False)
    """The connection class of a user's own client, by flavor."""
    mode: str = "standalone"  # what the server must be; else "cluster" or "sentinel"
    any_role: bool = False  # whether a replica is accepted, as for reading the slot map of a cluster
    strict: Strict | None = None  # the options of strict mode; None if it is off
    fails_over: bool = False  # whether another server may take its place

    def at(self, host: str, port: int) -> Settings:
        """Return the same for a server that sentinels or a cluster name: another may take its place."""
        options = Veiled(self.options)
        options.update(host=host, port=port)
        return replace(self, where=address(host, port), options=options, fails_over=True)

    def attempt_within(self, within: float) -> float:
        """Return the seconds for one attempt to connect: a part of the caller's if the next may be at a successor."""
        return min(within, max(LEAST_ATTEMPT, within / 3)) if self.fails_over else within

    @property
    def restricted(self) -> bool:
        """Whether the user is not the default one, so that it may lack rights."""
        named = self.options.get("username") not in (None, "", "default")
        return named or self.options.get("credential_provider") is not None

    @property
    def encrypted(self) -> bool:
        """Whether the connection uses TLS."""
        return self.kind == "tls" or any(issubclass(cls, _ENCRYPTED) for cls in self.classes.values())

    @property
    def verified(self) -> bool:
        """Whether TLS verifies the server: certificate and host name."""
        required = self.options.get("ssl_cert_reqs", "required") in ("required", ssl.CERT_REQUIRED)
        return self.encrypted and required and bool(self.options.get("ssl_check_hostname", _NAMES_CHECKED))

    @property
    def local(self) -> bool:
        """Whether the connection does not leave this host."""
        return "path" in self.options or is_local(str(self.options.get("host", "localhost")))

    def connection(self, flavor: Flavor, within: float) -> Any:
        """Make a connection of redis-py that is not connected yet and will not retry by itself."""
        cls = self.classes.get(flavor) or _CLASSES[self.kind, flavor]
        options = Veiled(self.options)
        options.update(
            retry=Retry(NoBackoff(), 0),
            socket_timeout=within,
            socket_connect_timeout=within,
            health_check_interval=0,
            protocol=3,
            **_silence(cls),  # type: ignore[arg-type]  # mypy takes a class for not hashable
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return cls(**options)


@functools.cache
def _silence(cls: type[Any]) -> Mapping[str, Any]:
    """Return the settings with which a connection sends no more than its login, and is sent no more than we ask for.

    What a connection accepts differs among the releases of redis-py.
    """
    makers = [base.__dict__["__init__"] for base in cls.__mro__ if "__init__" in base.__dict__]
    accepted = {name for maker in makers for name in inspect.signature(maker).parameters}
    names = ("driver_info",) if "driver_info" in accepted else ("lib_name", "lib_version")
    found: dict[str, Any] = dict.fromkeys(names)
    if "maint_notifications_config" in accepted:
        from redis.maint_notifications import MaintNotificationsConfig

        found["maint_notifications_config"] = MaintNotificationsConfig(enabled=False)
    return found


_NAMES_CHECKED: bool = inspect.signature(redis.SSLConnection).parameters["ssl_check_hostname"].default
"""Whether TLS compares the host name if a client's settings say nothing of it: not in redis-py 5."""

_ENCRYPTED = (redis.SSLConnection, redis.asyncio.SSLConnection)

_CLASSES: Mapping[tuple[str, Flavor], type[Any]] = {
    ("tcp", Flavor.SYNC): redis.Connection,
    ("tls", Flavor.SYNC): redis.SSLConnection,
    ("unix", Flavor.SYNC): redis.UnixDomainSocketConnection,
    ("tcp", Flavor.ASYNC): redis.asyncio.Connection,
    ("tls", Flavor.ASYNC): redis.asyncio.SSLConnection,
    ("unix", Flavor.ASYNC): redis.asyncio.UnixDomainSocketConnection,
}


def from_url(url: StoreURL) -> Settings:
    """Read ``redis://``, ``rediss://``, ``unix://`` and the same of Valkey.

    Raises:
        ValueError: an option or the database number is wrong.
    """
    check_options(url, tuple(URL_OPTIONS))
    kind = {"unix": "unix", "rediss": "tls", "valkeys": "tls"}.get(url.scheme.partition("+")[0], "tcp")
    options = Veiled((key, _value(key, url)) for key in url.options)
    if None in options.values():
        key = next(key for key, value in options.items() if value is None)
        raise ValueError(f"option {key!r} in the {url.scheme} URL has an invalid value")
    if url.username:
        options["username"] = url.username
    if url.password is not None:
        options["password"] = url.password.reveal()
    if kind == "tls":
        options.setdefault("ssl_check_hostname", True)
    return _unix(url, options) if kind == "unix" else _network(url, kind, options)


def check_options(url: StoreURL, known: tuple[str, ...]) -> None:
    """Raise ValueError for an option that is not in ``known``, or is of TLS where the scheme has none."""
    if "ssl_cert_reqs" in url.options:
        raise ValueError(
            f"option 'ssl_cert_reqs' is not offered in the {url.scheme} URL: the server's certificate is always "
            "verified; name your own authority with ssl_ca_certs=FILE"
        )
    kind, plus, deployed = url.scheme.partition("+")
    secure = {"redis": "rediss", "valkey": "valkeys", "unix": "rediss", "redlock": "redlocks"}.get(kind)
    url.refuse_options(known, secure=secure + plus + deployed if secure else "")


def _value(key: str, url: StoreURL) -> Any:
    try:
        return URL_OPTIONS[key](url.options[key])
    except (ValueError, KeyError):
        return None


def _network(url: StoreURL, kind: str, options: Veiled) -> Settings:
    if len(url.hosts) > 1:
        raise ValueError(f"a {url.scheme} URL names one server; several are for Sentinel, Cluster and Redlock URLs")
    if not url.hosts and url.path and not url.path.startswith("/"):
        raise ValueError(f"a {url.scheme} URL has two slashes before its host; write {url.scheme}://localhost:6379")
    host, port = url.hosts[0] if url.hosts else ("localhost", None)
    keepalive = {getattr(socket, key): value for key, value in KEEPALIVE.items() if hasattr(socket, key)}
    options.update(host=host, port=port or 6379, socket_keepalive=True, socket_keepalive_options=keepalive)
    path = url.path if url.hosts else url.path.lstrip("/")
    if path:
        try:
            number = _database(path)
        except ValueError:
            raise ValueError(
                f"the path of a {url.scheme} URL is the number of the database, as in {url.scheme}://localhost:6379/0"
            ) from None
        if options.setdefault("db", number) != number:
            raise ValueError(f"the {url.scheme} URL names two databases, in its path and by the option 'db'")
    return Settings(address(host, port or 6379), kind, options)


def _unix(url: StoreURL, options: Veiled) -> Settings:
    path = "/" + url.path.lstrip("/")
    if url.hosts or path == "/":
        raise ValueError("a unix URL is written unix:///path/to/redis.sock, with three slashes")
    options["path"] = path
    return Settings(path, "unix", options)


def _database(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 6):
        raise ValueError("not the number of a database")
    return int(text)


def _file(text: str) -> str:
    if not text or "\0" in text:
        raise ValueError("not a path")
    return text


def check_handshake(hello: Any, settings: Settings) -> dict[str, str]:
    """Check the server's reply to HELLO, and return its fields.

    Raises:
        Unsupported: the server is too old, answers in RESP2, or is of another kind than the URL names.
        StoreUnavailable: it is a replica, from which no decision is ever taken.
    """
    where = settings.where
    if isinstance(hello, ReplyError):
        raise connect_error(hello, where)
    if not hasattr(hello, "items"):
        raise speaks_resp2(where)
    facts = {_text(key): _text(value) for key, value in hello.items()}
    if version_of(facts) < OLDEST:
        needed, version = ".".join(map(str, OLDEST)), facts.get("version", "0")
        raise Unsupported(f"the server at {where} is version {version}; locks need Redis {needed} or later, or Valkey")
    mode = facts.get("mode", "standalone")
    if mode != settings.mode:
        raise Unsupported(f"the server at {where} is {MODES.get(mode, mode)}; {RIGHT_URL.get(mode, RIGHT_URL[''])}")
    if facts.get("role", "master") not in ("master", "primary") and not settings.any_role:
        raise RetryableError(f"the server at {where} is a replica; {REMEDIES['READONLY']}")
    return facts


def speaks_resp2(where: str) -> Unsupported:
    """Return the error for a server whose reply to HELLO 3 is no map."""
    return Unsupported(f"the server at {where} answers in RESP2; locks need RESP3, also from a proxy in between")


MODES = {"sentinel": "a Sentinel", "cluster": "a node of a cluster", "standalone": "a single server"}
RIGHT_URL = {"sentinel": BY_SENTINEL, "cluster": BY_CLUSTER, "": "write the URL as redis://HOST:PORT"}


PROVIDER_FAILED = "its credential provider failed"

HINTS = {
    PROVIDER_FAILED: "check the service that it asks",  # first: the rest of the text is not ours
    "max number of clients": "it has as many clients as its maxclients allows; raise that, or close some",
    "protected mode": "it serves only its own host; set a password, or bind it to an address",
    "DB index": "the number of the database in the URL is too high for its setting 'databases'",
    "invalid username-password": REMEDIES["WRONGPASS"],
    "Authentication required": REMEDIES["NOAUTH"],
    "HELLO must be called": REMEDIES["NOAUTH"],
    "without any password": "it has no password; leave it out of the URL",
    "mismatch": "its certificate is for another host name; use that name, or a certificate with this one",
    "not valid for": "its certificate is for another host name; use that name, or a certificate with this one",
    "CERTIFICATE_VERIFY_FAILED": "name the authority that signed its certificate with ssl_ca_certs=FILE",
    "WRONG_VERSION_NUMBER": "it does not use TLS on this port; use its TLS port, or write redis:// instead of rediss://",
    "record layer failure": "it does not use TLS on this port; use its TLS port, or write redis:// instead of rediss://",
    "onnection refused": "nothing listens there; check host and port, and that the server runs",
    "Connect call failed": "nothing listens there; check host and port, and that the server runs",
    "No such file": "there is no such file; check the path of the socket or of the certificate",
    "ermission denied": "this process may not open it; check the rights of the socket's file",
    "Name or service not known": "the host name is unknown; check its spelling and the DNS",
    "No address associated": "the host name has no address; check its spelling and the DNS",
    "emporary failure in name resolution": "the DNS does not answer",
    "imeout": SILENCE,
    "imed out": SILENCE,
    "closed by server": "it closed the connection; if it uses TLS, write rediss://",
    "reset by peer": "it closed the connection; if it uses TLS, write rediss://",
}
"""What to do about a failed connection, by a part of the error's text."""

CLOSED_IN_HANDSHAKE = ("closed by server", "reset by peer", "roken pipe")
"""Parts of the texts of errors after a connection was closed in its handshake."""

REFUSALS = (REMEDIES["WRONGPASS"], REMEDIES["NOAUTH"], HINTS["without any password"], HINTS["DB index"])
"""The hints for errors that no other server and no retry changes."""


def connect_error(error: Exception, where: str) -> StoreUnavailable | Unsupported:
    """Return the exception for a failed connection. No command was sent.

    It must be raised where ``error`` is not its context: redis-py's frames show the password, and old servers may
    repeat it in an error.
    """
    text = str(error) or type(error).__name__
    of_server = not text.startswith(PROVIDER_FAILED)
    if of_server and "unknown command" in text.lower():
        return Unsupported(f"the server at {where} does not know HELLO; locks need Redis 6.2 or later, or Valkey")
    if isinstance(error, redis.exceptions.NoPermissionError):
        return refused(where, ReplyError(f"NOPERM {text}"))
    hint = next((hint for part, hint in HINTS.items() if part in text), None)
    hint = hint or REMEDIES.get(text.partition(" ")[0]) or "check host, port and that the server runs"
    if hint == REMEDIES["NOAUTH"]:
        text = "it wants a password (NOAUTH)"  # in place of the server's long text about HELLO
    message = with_remedy(f"cannot connect to Redis at {where}: {text}", hint)
    if of_server and any(part in text for part in CLOSED_IN_HANDSHAKE):
        return HandshakeAborted(message)
    return StoreUnavailable(message) if hint in REFUSALS else RetryableError(message)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
