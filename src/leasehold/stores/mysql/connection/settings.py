"""The settings of connections to one server: address, TLS, credentials, and the settings of each session."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from leasehold._runtimes.base import Flavor
from leasehold._url import StoreURL, Veiled
from leasehold.errors import StoreUnavailable, Unsupported
from leasehold.stores._sql.transport import Outcome, Refused, Statement
from leasehold.stores.mysql.connection.base import REMEDIES, Greeting, Rows, joined, outcome_of

OLDEST = {"MariaDB": (10, 6), "MySQL": (8, 0)}
"""The oldest supported servers: older ones get no more security fixes."""

PORT = 3306

SESSION = (
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00', autocommit = 1,"
    " completion_type = 0, sql_safe_updates = 0, sql_select_limit = 18446744073709551615, timestamp = DEFAULT",
)
"""The settings of each session, whatever the server's defaults: each statement sees what is committed when it begins,
wrong values are errors, statements outside transactions commit, COMMIT neither chains nor disconnects, and the clock is
the server's."""

ASK = "SELECT CONNECTION_ID(), VERSION(), DATABASE(), @@read_only"
ASK_SETTINGS = "SHOW VARIABLES WHERE Variable_name IN ('wsrep_on', 'super_read_only', 'innodb_read_only')"

SSL_OPTIONS = ("ssl", "ssl_ca", "ssl_cert", "ssl_key", "ssl_check_hostname")
ASK_ENGINES = (
    "SELECT TABLE_NAME, ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() "
    "AND TABLE_NAME IN ('leasehold_name', 'leasehold_entry', 'leasehold_cell') AND ENGINE <> 'InnoDB'"
)

URL_OPTIONS = ("unix_socket", *SSL_OPTIONS)

Connect = Callable[[], Any]
"""Makes a new connection of the driver, for us alone; awaitable if the driver is one of asyncio."""


@dataclass(frozen=True)
class Settings:
    """Address, credentials and options of a server. Its repr has no secret, and it cannot be pickled.

    Attributes:
        where: for messages to people: host, port and database.
        database: its name.
        options: ``host``, ``port``, ``unix_socket``, ``user``, ``password``, ``database``, ``ssl``, as the drivers name
            them.
        connect: makes the connections of a user's own engine instead, by flavor.

    """

    where: str
    database: str
    options: Mapping[str, Any] = field(default_factory=Veiled, repr=False)
    connect: Mapping[Flavor, Connect] = field(default_factory=dict[Flavor, Connect], repr=False)

    @property
    def encrypted(self) -> bool | None:
        """Whether the connection uses TLS; None if a user's engine decides that."""
        return None if self.connect else self.options.get("ssl") is not None

    @property
    def local(self) -> bool:
        """Whether the connection does not leave this host."""
        host = str(self.options.get("host", ""))
        return "unix_socket" in self.options or host in ("localhost", "::1") or host.startswith("127.")

    def __reduce__(self) -> str:
        raise TypeError("settings cannot be pickled: they may have a password")


def from_url(url: StoreURL, known: tuple[str, ...] = ()) -> Settings:
    """Read ``mysql://user:password@host:3306/database`` or ``mariadb://…``; ``known`` are options of the caller.

    Raises:
        ValueError: a part is missing, or an option is wrong.

    """
    url.refuse_options((*URL_OPTIONS, *known))
    example = f"{url.scheme}://user:password@host:{PORT}/database"
    if len(url.hosts) > 1:
        raise ValueError(f"a {url.scheme} URL names one server, the primary; write {example}")
    path = url.path
    if not url.hosts and "unix_socket" not in url.options:
        raise ValueError(f"the {url.scheme} URL names no host; write {example}")
    if not path or "/" in path:
        raise ValueError(f"the path of a {url.scheme} URL is the name of the database; write {example}")
    if not url.username:
        raise ValueError(f"the {url.scheme} URL names no user; write {example}")
    options = Veiled(user=url.username, database=path)
    if url.password is not None:
        options["password"] = url.password.reveal().encode()  # the drivers take text for latin1
    where = _address(url, options)
    context = _tls(url)
    if context is not None:
        options["ssl"] = context
    return Settings(f"{where}/{path}", path, options)


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
    return f"{f'[{host}]' if ':' in host else host}:{port or PORT}"


def _tls(url: StoreURL) -> ssl.SSLContext | None:
    """Return a context that verifies the server, None without TLS."""
    given = {key: url.options[key] for key in SSL_OPTIONS if key in url.options}
    for key in ("ssl", "ssl_check_hostname"):
        if given.get(key, "true") not in ("true", "false"):
            raise ValueError(f"option {key!r} in the {url.scheme} URL is true or false")
    if not given or given == {"ssl": "false"}:
        return None
    if given.get("ssl") == "false" or "unix_socket" in url.options:
        raise ValueError(f"the {url.scheme} URL has options for TLS and does not use it; leave them out")
    if ("ssl_key" in given) and "ssl_cert" not in given:
        raise ValueError(f"the {url.scheme} URL has 'ssl_key' without 'ssl_cert'; name both files")
    failed = ""
    try:
        context = ssl.create_default_context(cafile=given.get("ssl_ca"))
        context.check_hostname = given.get("ssl_check_hostname", "true") == "true"
        if "ssl_cert" in given:
            context.load_cert_chain(given["ssl_cert"], given.get("ssl_key"), password="")
        return context
    except (OSError, ValueError, ssl.SSLError) as error:
        failed = f"{type(error).__name__}: {error}"
    raise ValueError(f"the files for TLS in the {url.scheme} URL cannot be used ({failed}); check their paths")


def from_engine(engine: Any, flavor: Flavor) -> Settings:
    """Use an engine of SQLAlchemy to make connections: with its URL, its arguments and its events.

    The connections are new ones, detached from the engine's pool: a session of ours is set up for locks.

    Raises:
        TypeError: it is of the other flavor, or on another driver.

    """
    asynchronous, driver = hasattr(engine, "sync_engine"), engine.dialect.driver
    wanted = "asyncmy" if flavor is Flavor.ASYNC else "pymysql"
    if asynchronous is not (flavor is Flavor.ASYNC) or driver != wanted:
        fitting = "AsyncClient with create_async_engine('mysql+asyncmy://…')"
        if flavor is Flavor.SYNC:
            fitting = "Client with create_engine('mysql+pymysql://…')"
        raise TypeError(f"an engine on {driver} does not fit this client; use {fitting}")
    url = engine.url
    where = f"{url.host or 'localhost'}:{url.port or PORT}/{url.database or ''}"

    async def connect_async() -> Any:
        return _detached(await engine.raw_connection())

    def connect() -> Any:
        return _detached(engine.raw_connection())

    connects: Connect = connect_async if asynchronous else connect
    return Settings(where, url.database or "", Veiled(host=url.host or "localhost"), {flavor: connects})


def _detached(pooled: Any) -> Any:
    connection = pooled.driver_connection
    pooled.detach()
    charset = getattr(connection, "charset", None) or connection._charset
    if charset != "utf8mb4":
        raise Unsupported(f"the engine's connections use the character set {charset}; make it with charset=utf8mb4")
    return connection


# --- the handshake -----------------------------------------------------------------------------------------------


def opening() -> bytes:
    """Return the first request on each connection."""
    return joined(Statement(text) for text in (*SESSION, ASK_ENGINES, ASK, ASK_SETTINGS))


def greeting(answers: Sequence[Rows], where: str) -> Greeting:
    """Check the server's answers to `opening`, and return them.

    Raises:
        Unsupported: it is too old, or its tables are of an engine without row locks.
        Refused: no database was named.

    """
    session, version, database, read_only = answers[-2][0]
    settings = {_text(name).lower(): _text(value).upper() for name, value in answers[-1]}
    version = _text(version)
    make, numbers = kind_of(version), tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST[make]:
        needed = " and ".join(f"{name} {'.'.join(map(str, least))}" for name, least in OLDEST.items())
        raise Unsupported(f"the database at {where} is {make} {version}; locks need {needed} or later")
    if answers[-3]:
        table, engine = map(_text, answers[-3][0])
        raise Unsupported(
            f"the table {table} at {where} is of engine {engine}, which has no transactions or no row locks; run: "
            f"ALTER TABLE {table} ENGINE = InnoDB"
        )
    if database is None:
        words = f"no database was named for {where}; name one after the host: mysql://host/database"
        raise Refused(words, outcome=Outcome.LASTING)
    closed = _text(read_only) not in ("0", "OFF") or "ON" in (
        settings.get("super_read_only"),
        settings.get("innodb_read_only"),
    )
    return Greeting(int(session), version, _text(database), closed, settings.get("wsrep_on") == "ON")


def kind_of(version: str) -> str:
    """Return the make of the server: MariaDB or MySQL."""
    return "MariaDB" if "mariadb" in version.lower() else "MySQL"


def refuse_read_only(found: Greeting, where: str) -> None:
    """Raise if the server is read-only. Administrators could write even so, and lose it: it is a replica."""
    if found.read_only:
        raise StoreUnavailable(f"the database at {where} refused: {REMEDIES[1836]}")


DRIVERS_ERRORS = (OSError, EOFError, RuntimeError, ValueError, IndexError, SystemError)
"""What the drivers raise besides errors of their own; the last two for unknown authentication methods."""

METHOD = "its user logs in by a method that the driver does not know; use caching_sha2_password or ed25519"

HINTS = {
    "mismatch": "its certificate is for another host name; use that name, or ssl_check_hostname=false",
    "CERTIFICATE_VERIFY_FAILED": "name the authority that signed its certificate with ssl_ca=FILE",
    "WRONG_VERSION_NUMBER": "it does not speak TLS; leave ssl out of the URL",
    "SSL is required": "it does not speak TLS; leave ssl out of the URL",
    "onnection refused": "nobody listens there; check host and port, and that the server runs",
    "Connect call failed": "nobody listens there; check host and port, and that the server runs",
    "No such file": "there is no such socket; check its path",
    "ermission denied": "this process may not open it; check the rights of the socket's file",
    "Name or service not known": "the host name is unknown; check its spelling and the DNS",
    "No address associated": "the host name has no address; check its spelling and the DNS",
    "emporary failure in name resolution": "the DNS does not answer",
    "cryptography": "its user logs in by a method for which the driver needs: pip install cryptography",
    "nacl": "its user logs in by a method for which the driver needs: pip install pynacl",
    "imeout": "look whether it is up, reachable and not overloaded",
    "imed out": "look whether it is up, reachable and not overloaded",
    "Lost connection": "it closed the connection; look at its log",
    "index out of range": METHOD,
    "Negative size": METHOD,
}
"""What to do about a failed connection, by a part of the error's text. The first match counts."""


def connect_error(error: BaseException, where: str) -> StoreUnavailable:
    """Make the error for a connection that could not be opened. Only the login was sent.

    Raise it where ``error`` is not its context: the drivers' frames show the password.
    """
    return cannot_connect(*code_of(error), where)


def cannot_connect(code: int, text: str, where: str) -> StoreUnavailable:
    """Make the error for a connection that failed with this error number, 0 if it has none, and text."""
    if code in REMEDIES:
        words = f"cannot connect to the database at {where}: {text} ({code}); {REMEDIES[code]}"
        return Refused(words, code=str(code), outcome=outcome_of(code, committing=False))
    hint = next((hint for words, hint in HINTS.items() if words in text), "check host, port and that the server runs")
    return StoreUnavailable(f"cannot connect to the database at {where}: {text}; {hint}")


def code_of(error: BaseException) -> tuple[int, str]:
    """Return number and text of a driver's error; 0 if it has no number."""
    given = error.args
    if len(given) >= 2 and isinstance(given[0], int):
        return given[0], _text(given[1])
    return 0, str(error) or type(error).__name__


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
