"""A user's database connection of either flavor, whatever its driver: statements in, rows and counts out.

Known are psycopg 2 and 3, sqlite3, PyMySQL, asyncmy, Django's connections, SQLAlchemy's connections and sessions, and
whatever else has DB-API's ``cursor()``. An algorithm is a generator of `Ask`, answered by `Answer`: so it is written
once for both flavors.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from inspect import isawaitable
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

QUESTION_MARKS = ("sqlite3", "aiosqlite", "apsw")
"""Drivers whose placeholder is ``?``; all others have ``%s``."""


class Ask(NamedTuple):
    """A statement with ``{}`` for each placeholder."""

    text: str
    args: Sequence[Any] = ()


class Answer(NamedTuple):
    """The rows, none if it has none, and how many it changed."""

    rows: list[tuple[Any, ...]]
    changed: int


Asking = Generator[Ask, Answer, T]


def dialect_of(connection: Any) -> str:
    """Return ``postgresql``, ``mysql``, ``sqlite`` or, if it is unknown, an empty text."""
    engine = getattr(connection, "dialect", None) or getattr(getattr(connection, "bind", None), "dialect", None)
    words = f"{getattr(engine, 'name', '')} {getattr(connection, 'vendor', '')} {_package(connection)}".lower()
    for name, marks in (
        ("postgresql", ("postgres", "psycopg")),
        ("mysql", ("mysql", "mariadb", "asyncmy")),
        ("sqlite", ("sqlite",)),
    ):
        if any(mark in words for mark in marks):
            return name
    return ""


def run(connection: Any, asking: Asking[T]) -> T:
    """Run a generator of statements on a blocking connection; return its result."""
    answer: Answer | None = None
    failure: Exception | None = None
    while True:
        try:
            ask = _next(asking, answer, failure)
        except StopIteration as stop:
            result: T = stop.value
            return result
        answer, failure = None, None
        try:
            answer = _execute(connection, ask)
        except Exception as error:  # raised in the algorithm, which handles it
            failure = error


async def arun(connection: Any, asking: Asking[T]) -> T:
    """Run a generator of statements on an asyncio connection; return its result."""
    answer: Answer | None = None
    failure: Exception | None = None
    while True:
        try:
            ask = _next(asking, answer, failure)
        except StopIteration as stop:
            result: T = stop.value
            return result
        answer, failure = None, None
        try:
            answer = await _aexecute(connection, ask)
        except Exception as error:
            failure = error


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


def _next(asking: Asking[T], answer: Answer | None, failure: Exception | None) -> Ask:
    if failure is not None:
        return asking.throw(failure)
    return next(asking) if answer is None else asking.send(answer)


def _package(connection: Any) -> str:
    return " ".join(cls.__module__ for cls in type(connection).__mro__)


def _text(ask: Ask, mark: str) -> str:
    return ask.text.format(*[mark] * ask.text.count("{}"))


def _execute(connection: Any, ask: Ask) -> Answer:
    if _is_session(connection):
        connection = connection.connection()
    if hasattr(connection, "exec_driver_sql"):
        return _answer(connection.exec_driver_sql(_text(ask, _engine_mark(connection)), tuple(ask.args)))
    cursor: Any = connection.cursor() if callable(getattr(connection, "cursor", None)) else connection
    try:
        cursor.execute(_text(ask, _mark(connection)), tuple(ask.args))
        return _answer(cursor)
    finally:
        if cursor is not connection:
            cursor.close()


async def _aexecute(connection: Any, ask: Ask) -> Answer:
    if _is_session(connection):
        connection = await connection.connection()
    if hasattr(connection, "exec_driver_sql"):
        result = await connection.exec_driver_sql(_text(ask, _engine_mark(connection)), tuple(ask.args))
        return _answer(result)
    cursor: Any = connection.cursor() if callable(getattr(connection, "cursor", None)) else connection
    cursor = await cursor if isawaitable(cursor) else cursor
    try:
        await cursor.execute(_text(ask, _mark(connection)), tuple(ask.args))
        if not cursor.description:
            return Answer([], cursor.rowcount)
        rows = cursor.fetchall()
        return Answer([tuple(row) for row in (await rows if isawaitable(rows) else rows)], cursor.rowcount)
    finally:
        if cursor is not connection:
            closing = cursor.close()
            if isawaitable(closing):
                await closing


def _is_session(connection: Any) -> bool:
    """Return whether it is SQLAlchemy's session, which has a connection for its transaction."""
    return not hasattr(connection, "exec_driver_sql") and callable(getattr(connection, "connection", None))


def _answer(result: Any) -> Answer:
    has_rows = getattr(result, "returns_rows", None)
    if has_rows is None:
        has_rows = bool(result.description)
    return Answer([tuple(row) for row in result.fetchall()] if has_rows else [], result.rowcount)


def _mark(connection: Any) -> str:
    return "?" if any(name in _package(connection) for name in QUESTION_MARKS) else "%s"


def _engine_mark(connection: Any) -> str:
    style = getattr(connection.dialect, "paramstyle", "format")
    return "?" if style == "qmark" else "%s"
