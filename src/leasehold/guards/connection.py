"""A user's database connection of either flavor, whatever its driver: statements in, rows and counts out.

Known are psycopg 2 and 3, sqlite3, PyMySQL, asyncmy, Django's connections, SQLAlchemy's connections and sessions, and
whatever else has DB-API's ``cursor()`` and shows which database it leads to. An algorithm is a generator that yields a
`Statement` and receives its `Answer`. The calls of a driver are a generator, too: it yields what a call returned, which
an asyncio driver wants awaited. So both are written once for both flavors.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from inspect import isawaitable
from typing import Any, NamedTuple, TypeVar, cast

T = TypeVar("T")

QUESTION_MARKS = ("sqlite3", "aiosqlite", "apsw")
"""Drivers whose placeholder is ``?``; all others have ``%s``, but for raw cursors of psycopg, which have ``$``."""


MARKS = {"qmark": "?", "numeric_dollar": "$"}
"""Placeholders of SQLAlchemy's dialects; ``$`` is followed by a number, as for asyncpg."""

NO_STREAM = {"stream_results": False, "yield_per": None}
"""Options of SQLAlchemy: no cursor of the server, which takes a SELECT only."""


class Statement(NamedTuple):
    """A statement with ``{}`` for each placeholder. Its columns differ in name: rows may be dictionaries."""

    text: str
    args: Sequence[Any] = ()


class Answer(NamedTuple):
    """The rows that a statement returned, and how many it changed."""

    rows: list[tuple[Any, ...]]
    changed: int


Statements = Generator[Statement, Answer, T]

Calls = Generator[Any, Any, T]
"""Yields what each call of a driver returned, and receives that or, of an awaitable, its result."""

DIALECTS = {
    "postgresql": ("postgres", "psycopg", "asyncpg", "pg8000", "aiopg", "pgdb"),
    "mysql": ("mysql", "mariadb", "asyncmy"),
    "sqlite": ("sqlite", "apsw", "sqlcipher"),
}


def dialect_of(connection: Any) -> str:
    """Return ``postgresql``, ``mysql``, ``sqlite`` or, if it is unknown, an empty text."""
    engine = connection.get_bind() if _is_session(connection) else connection  # a session may route, without a `bind`
    raw = getattr(connection, "driver_connection", connection)  # behind a connection of SQLAlchemy's pool
    django = getattr(connection, "db", connection)  # a cursor of Django leads to its connection
    dialect = getattr(engine, "dialect", None)  # one of another name may derive from that of PostgreSQL, or of MySQL
    known = getattr(dialect, "name", ""), _package(dialect), getattr(django, "vendor", ""), _package(raw)
    words = " ".join(map(str, known)).lower()
    return next((name for name, marks in DIALECTS.items() if any(mark in words for mark in marks)), "")


def run(connection: Any, statements: Statements[T]) -> T:
    """Run a generator of statements on a blocking connection; return its result."""
    calls = _calls(connection, statements, asynchronous=False)
    try:
        result = next(calls)
        while True:
            result = calls.send(result)
    except StopIteration as stop:
        found: T = stop.value
        return found


async def arun(connection: Any, statements: Statements[T]) -> T:
    """Run a generator of statements on an asyncio connection; return its result."""
    calls = _calls(connection, statements, asynchronous=True)
    try:
        called = next(calls)
        while True:
            try:
                result = await called if isawaitable(called) else called
            except BaseException as error:  # also a cancellation: the cursor is closed
                called = calls.throw(error)
            else:
                called = calls.send(result)
    except StopIteration as stop:
        found: T = stop.value
        return found


def code_of(error: BaseException) -> str:
    """Return the SQLSTATE of a driver's error, also where SQLAlchemy or Django has wrapped it; empty if it has none."""
    seen: BaseException | None = error
    while seen is not None:
        for holder in (seen, getattr(seen, "orig", None)):
            code = getattr(holder, "sqlstate", None) or getattr(holder, "pgcode", None)
            if code:
                return str(code)
        seen = seen.__cause__
    return ""


def _calls(connection: Any, statements: Statements[T], *, asynchronous: bool) -> Calls[T]:
    try:
        statement = next(statements)
        while True:
            try:
                answer = yield from _execute(connection, statement, asynchronous)
            except Exception as error:  # raised in the algorithm, which handles it
                statement = statements.throw(error)
            else:
                statement = statements.send(answer)
    except StopIteration as stop:
        found: T = stop.value
        return found


def _execute(connection: Any, statement: Statement, asynchronous: bool) -> Calls[Answer]:
    if _is_session(connection):
        connection = yield connection.connection()
    if hasattr(connection, "exec_driver_sql"):
        mark = MARKS.get(getattr(connection.dialect, "paramstyle", ""), "%s")
        called = connection.exec_driver_sql(_text(statement, mark), tuple(statement.args), execution_options=NO_STREAM)
        result = yield _require_flavor(called, asynchronous)
        return Answer([tuple(row) for row in result.fetchall()] if result.returns_rows else [], result.rowcount)
    options: dict[str, Any] = {}
    if "psycopg" in _package(connection):
        # A cursor may be one of the server, or have rows of another shape, as its connection's may: use one of our own.
        connection = getattr(connection, "connection", connection)
        options = _require_answers(connection)
    cursor: Any = (yield connection.cursor(**options)) if callable(getattr(connection, "cursor", None)) else connection
    package = _package(cursor)
    if cursor is not connection and "sqlite" in package:
        cursor.row_factory = None  # rows are tuples, whatever those of the connection are
    mark = "?" if any(name in package for name in QUESTION_MARKS) else "$" if "raw_cursor" in package else "%s"
    try:
        yield _require_flavor(cursor.execute(_text(statement, mark), tuple(statement.args)), asynchronous)
        rows: Any = (yield cursor.fetchall()) if cursor.description else []
        return Answer([_values(row) for row in rows], cursor.rowcount)
    finally:
        if cursor is not connection:
            closing = cursor.close()
            if isawaitable(closing):  # a generator that an interrupt has closed must not yield here
                yield closing


def _require_answers(connection: Any) -> dict[str, Any]:
    """Refuse a connection of psycopg in pipeline mode; return the options of a cursor whose rows are tuples."""
    if not hasattr(connection, "row_factory"):
        return {}  # psycopg 2 has neither
    if connection.info.pipeline_status:
        raise ValueError(
            "the connection is in pipeline mode, in which a guard has no answer to its statements; "
            "call it before or after the block of connection.pipeline()"
        )
    return {"row_factory": _tuples}


def _tuples(cursor: Any) -> type[tuple[Any, ...]]:
    return tuple


def _values(row: Any) -> tuple[Any, ...]:
    return tuple(cast("Mapping[str, Any]", row).values()) if isinstance(row, Mapping) else tuple(row)


def _is_session(connection: Any) -> bool:
    """Return whether it is SQLAlchemy's session, which has a connection for its transaction."""
    if any(hasattr(connection, name) for name in ("exec_driver_sql", "fetchall", "cursor")):
        return False  # a connection of SQLAlchemy, a cursor, or Django's connection; theirs may be callable
    return callable(getattr(connection, "connection", None))


def _require_flavor(called: Any, asynchronous: bool) -> Any:
    if isawaitable(called) is not asynchronous:
        given, wanted = ("a blocking", "an asyncio") if asynchronous else ("an asyncio", "a blocking")
        raise TypeError(f"this is {given} connection, and the function needs {wanted} one")
    return called


def _package(connection: Any) -> str:
    return " ".join(cls.__module__ for cls in connection.__class__.__mro__)  # type() of a tracer's proxy is its own


def _text(statement: Statement, mark: str) -> str:
    count = statement.text.count("{}")
    return statement.text.format(*([f"${at}" for at in range(1, count + 1)] if mark == "$" else [mark] * count))
