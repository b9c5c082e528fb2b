"""What the tests of canaries share: a password is looked for in all that leaves the library."""

from __future__ import annotations

import asyncio
import gc
import io
import logging
import os
import pickle
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from leasehold import AsyncClient, Client
from leasehold_lab.conformance.case_context import internal_classes

HERE = os.path.dirname(__file__)
CANARY = "Zc4naryZ"
WRONG = f"{CANARY}wrong"


class Record:
    """Everything that was shown."""

    def __init__(self) -> None:
        self.logs = io.StringIO()
        self.texts: list[str] = []

    def objects(self, *things: object) -> None:
        """Show things as `print`, f-strings and debuggers do."""
        for thing in things:
            self.texts += [str(thing), repr(thing), ascii(thing)]

    def pickled(self, thing: object) -> None:
        """Pickle what can be pickled."""
        try:
            self.texts.append(repr(pickle.dumps(thing)))
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            self.texts.append(str(error))

    def error(self, error: BaseException) -> None:
        """Show an error as crash reporters do: with all causes, and with the local variables of our frames."""
        assert internal_classes(error) == []
        self.objects(error)
        self.pickled(error)
        self.texts += traceback.format_exception(error)
        self.texts.append(repr(vars(error)))
        seen = traceback.TracebackException.from_exception(error, capture_locals=True)
        todo: list[traceback.TracebackException | None] = [seen]
        while todo:
            shown = todo.pop()
            if shown is not None:
                todo += [shown.__cause__, shown.__context__]
                self.texts += [repr(frame.locals) for frame in shown.stack if os.path.dirname(frame.filename) != HERE]

    def hits(self) -> list[str]:
        """Return what has the canary in it."""
        return [text[:2000] for text in [self.logs.getvalue(), *self.texts] if CANARY in text]


@pytest.fixture
def record() -> Iterator[Record]:
    """Record the logs of all loggers at DEBUG, and all warnings."""
    kept = Record()
    root, handler = logging.getLogger(), logging.StreamHandler(kept.logs)
    level = root.level
    loggers = [logging.getLogger(name) for name in ("leasehold", "redis", "asyncio", *logging.root.manager.loggerDict)]
    levels = [logger.level for logger in loggers]
    root.addHandler(handler)
    for logger in (root, *loggers):
        logger.setLevel(logging.DEBUG)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        yield kept
        gc.collect()
    kept.texts += [str(warning) for warning in heard]
    root.removeHandler(handler)
    root.setLevel(level)
    for logger, before in zip(loggers, levels, strict=True):
        logger.setLevel(before)
    assert kept.hits() == []


def shown(record: Record, client: Any) -> None:
    """Show a client and what it is made of."""
    store = client.store
    inner = [getattr(store, name) for name in INNER if hasattr(store, name)]
    parts = [client, store, *inner, client.owner, client.lock("x")]
    record.objects(*parts, vars(client), vars(store))
    if hasattr(store, "_settings"):
        record.objects(vars(store._settings), store._settings.options)
    for part in parts:
        record.pickled(part)


INNER = ("_settings", "_transport", "_watched", "_sentinels", "_topology")
"""What stores keep that knows a password."""


async def awaited(value: Any) -> Any:
    return await value if hasattr(value, "__await__") else value


async def use(record: Record, client: Any) -> None:
    """Take every path that shows something."""
    shown(record, client)
    hold = await awaited(client.lock("x", lease=0.5, meta={"who": "me"}).acquire(timeout=2))
    try:
        record.objects(hold, await awaited(client.inspect("x")), await awaited(client.holds()))
        record.objects(*await awaited(client.diagnose()))
        assert await awaited(client.lock("x").acquire(timeout=0.05)) is None
        lost = client.force_release("x", hold.token)
        await awaited(lost)
        await awaited(hold.release())
    except Exception as error:
        record.error(error)
    else:
        pytest.fail("a broken hold was released")


async def fail(record: Record, client: Any) -> None:
    for call in (lambda: client.lock("x").acquire(timeout=0.2), client.diagnose):
        try:
            await awaited(call())
        except Exception as error:
            record.error(error)
        else:
            pytest.fail("it worked")
    shown(record, client)


def run(work: Callable[[Any], Any], make: Callable[..., Any], *args: Any, **options: Any) -> None:
    """Run ``work(client)`` with a client that ``make`` makes, of either flavor."""

    async def body() -> None:
        client = make(*args, **options)
        try:
            await work(client)
        finally:
            await awaited(client.close())

    asyncio.run(body()) if make.__self__ is AsyncClient else threaded(body)  # type: ignore[attr-defined]


def threaded(body: Callable[[], Any]) -> None:
    """Run a coroutine that blocks, outside any event loop."""
    try:
        body().send(None)
    except StopIteration:
        return
    raise AssertionError("it suspended")


FLAVORS = pytest.mark.parametrize("kind", [Client, AsyncClient])
