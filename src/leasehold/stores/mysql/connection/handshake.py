"""How a connection is opened and set up, and what it means if that fails. For both drivers."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable, Unsupported
from leasehold.stores._common.answers import with_remedy
from leasehold.stores._sql.transport import Outcome, Refused, Statement, addresses_in
from leasehold.stores.mysql.connection.base import (
    NO_ANSWER_REMEDY,
    REMEDIES,
    Connection,
    Greeting,
    NoAnswer,
    Refusal,
    Rows,
    is_connection_error,
    joined,
    no_answer,
    outcome_of,
)
from leasehold.stores.mysql.connection.settings import Settings

L = TypeVar("L", bound=Connection)
Resolve = Callable[[Settings, float], Awaitable[Sequence[tuple[Any, ...]]]]

OLDEST = {"MariaDB": (10, 6), "MySQL": (8, 0)}
"""The oldest supported servers: older ones get no more security fixes."""

ALONE_WAITS = 1
"""Seconds for which a statement outside a transaction may wait for a row or a table: the least that MySQL allows."""

ALONE_LIMITS = f"innodb_lock_wait_timeout = {ALONE_WAITS}, lock_wait_timeout = {ALONE_WAITS}"

SESSION = (
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00', autocommit = 1,"
    " completion_type = 0, sql_safe_updates = 0, sql_select_limit = 18446744073709551615, timestamp = DEFAULT,"
    f" {ALONE_LIMITS}",
)
"""The settings of each session, whatever the server's defaults: each statement sees what is committed when it begins,
wrong values are errors, statements outside transactions commit, COMMIT neither chains nor disconnects, and the clock is
the server's."""

ASK_WRITABLE = Statement("SELECT @@GLOBAL.read_only")
ASK = "SELECT CONNECTION_ID(), VERSION(), DATABASE(), @@read_only"
ASK_SETTINGS = "SHOW VARIABLES WHERE Variable_name IN ('wsrep_on', 'super_read_only', 'innodb_read_only')"
ASK_ENGINES = (
    "SELECT TABLE_NAME, ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() "
    "AND TABLE_NAME IN ('leasehold_name', 'leasehold_entry', 'leasehold_cell') AND ENGINE <> 'InnoDB'"
)

DRIVERS_ERRORS = (OSError, EOFError, RuntimeError, ValueError, IndexError, SystemError)
"""What the drivers raise besides errors of their own; the last two for unknown authentication methods."""

METHOD = "its user logs in by a method that the driver does not know; use caching_sha2_password or ed25519"

NO_PASSWORD = "put the password into the URL: mysql://user:password@host/database; or its user may not come from here"

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
    "imeout": NO_ANSWER_REMEDY,
    "imed out": NO_ANSWER_REMEDY,
    "Lost connection": "it closed the connection; look at its log",
    "index out of range": METHOD,
    "Negative size": METHOD,
    "called by a signal handler": "a listener of do_connect cannot use locks of a blocking client; call them before",
}
"""What to do about a failed connection, by a part of the error's text. The first match counts."""


async def opened(
    settings: Settings,
    runtime: Runtime,
    within: float,
    *,
    resolve: Resolve,
    dial: Callable[[Settings, str, float], Awaitable[Any]],
    wrap: Callable[[Any, Runtime], L],
    driver_error: type[Exception],
) -> L:
    """Open a connection, set up its session and check which server answers.

    ``resolve`` looks the host up. Each address gets its share of the time, see `Silent`: the drivers have no limit for
    each, and would wait for a silent first one. If it finds none, the driver looks the host up. ``dial`` makes a
    connection of the driver, to an address if it is not empty, within so many seconds. ``wrap`` adapts it.

    Raises:
        StoreUnavailable: no server answers, or none that can be used.
    """
    until = runtime.now() + within
    left = settings.silent.last(await _addresses(settings, runtime, until, resolve)) or [""]
    share = (until - runtime.now()) / len(left)
    while True:
        now = runtime.now()
        limit = max(settings.silent.limit(left, now, until), now + 0.001)
        address = left.pop(0)
        try:
            connection = await _opened(settings, runtime, limit, partial(dial, settings, address), wrap, driver_error)
            settings.silent.note(address, share, now, runtime.now(), answered=True)
            return connection
        except StoreUnavailable as error:
            ended = runtime.now()
            settings.silent.note(address, share, now, ended)
            if not left or isinstance(error, Refused) or ended >= until:
                raise


async def _addresses(settings: Settings, runtime: Runtime, until: float, resolve: Resolve) -> list[str]:
    if not settings.name:
        return []
    try:
        found = await resolve(settings, until - runtime.now())
        if runtime.now() >= until:
            raise TimeoutError
    except TimeoutError:
        late = TimeoutError("Temporary failure in name resolution: no answer in time")
        raise cannot_connect(late, settings.where) from None
    except (OSError, UnicodeError) as error:
        raise cannot_connect(error, settings.where) from None
    return addresses_in(found)


async def _opened(
    settings: Settings,
    runtime: Runtime,
    until: float,
    dial: Callable[[float], Awaitable[Any]],
    wrap: Callable[[Any, Runtime], L],
    driver_error: type[Exception],
) -> L:
    failed: StoreUnavailable | None = None
    raw: Any = None
    try:
        raw = await dial(max(until - runtime.now(), 0.001))
    except Exception as error:
        if not isinstance(error, (driver_error, *DRIVERS_ERRORS)) and type(error).__module__ != "sqlalchemy.exc":
            raise
        failed = cannot_connect(getattr(error, "orig", None) or error, settings.where)  # the driver's, of SQLAlchemy's
    if failed is not None:
        raise failed  # raised out here it has no context: local variables in the driver's frames show the password
    connection = wrap(raw, runtime)
    try:
        connection.greeting = greeting(await connection.run(opening(), until), settings.where)
    except BaseException as error:
        connection.abort()
        if isinstance(error, NoAnswer):
            raise no_answer(settings.where, error, unknown=False) from error
        if isinstance(error, Refusal):
            raise cannot_connect(error, settings.where) from error
        raise
    return connection


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
    closed = not is_off(read_only) or "ON" in (
        settings.get("super_read_only"),
        settings.get("innodb_read_only"),
    )
    return Greeting(int(session), read_only=closed, galera=settings.get("wsrep_on") == "ON")


def is_off(value: Any) -> bool:
    """Return whether this is the value of a variable that is off."""
    return _text(value) in ("0", "OFF")


def kind_of(version: str) -> str:
    """Return the make of the server: MariaDB or MySQL."""
    return "MariaDB" if "mariadb" in version.lower() else "MySQL"


def cannot_connect(error: BaseException, where: str) -> StoreUnavailable:
    """Make the error for a connection that could not be opened. Only the login was sent.

    Raise it where a driver's error is not its context: the drivers' frames show the password.
    """
    code, text = _code_of(error)
    if code in REMEDIES:
        remedy = NO_PASSWORD if "using password: NO" in text else REMEDIES[code]
        words = with_remedy(f"cannot connect to the database at {where}: {text} ({code})", remedy)
        return Refused(words, code=str(code), outcome=outcome_of(code, committing=False))
    hint = next((hint for words, hint in HINTS.items() if words in text), "check host, port and that the server runs")
    return StoreUnavailable(with_remedy(f"cannot connect to the database at {where}: {text}", hint))


def failure(
    error: BaseException, driver_error: type[Exception], answers: Sequence[Rows], *, connected: bool
) -> BaseException:
    """Return what to raise for an error during a request; only after a `Refusal` the connection can still be used."""
    if isinstance(error, driver_error):
        code, text = _code_of(error)
        return NoAnswer(text) if is_connection_error(code) or not connected else Refusal(code, text, answers)
    if isinstance(error, OSError | EOFError):
        late = isinstance(error, TimeoutError)
        return NoAnswer(str(error) or ("it answered too slowly" if late else type(error).__name__))
    return error


def _code_of(error: BaseException) -> tuple[int, str]:
    """Return number and text of an error of the driver or of the server; 0 if it has no number."""
    if isinstance(error, Refusal):
        return error.code, str(error)
    given = error.args
    if len(given) >= 2 and isinstance(given[0], int):
        return given[0], _text(given[1])
    return 0, str(error) or type(error).__name__


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
