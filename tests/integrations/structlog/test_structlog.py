"""leasehold's log records and events arrive in structlog with the lock's name and token."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.contextvars import bound_contextvars, clear_contextvars, merge_contextvars
from structlog.testing import LogCapture

from leasehold import AsyncClient, Client, LeaseLost
from leasehold.events import Event
from leasehold_lab.servers import RedisServer
from support.patience import until

PAGE = Path(__file__).parents[3] / "docs" / "integrations" / "structlog.md"


def lock_fields_of_the_page() -> Any:
    """Return the processor that the page shows."""
    found = re.search(r"^def lock_fields.*?(?=^\n|\n\n)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    names: dict[str, Any] = {}
    exec(found[0], names)
    return names["lock_fields"]


@contextmanager
def lines(level: int = logging.WARNING) -> Iterator[list[dict[str, Any]]]:
    """Format the records of leasehold as the page says; at the end, the list has them."""
    written: list[dict[str, Any]] = []

    class Written(logging.StreamHandler[io.StringIO]):
        def emit(self, record: logging.LogRecord) -> None:
            written.append(json.loads(self.format(record)))

    handler = Written(io.StringIO())
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[merge_contextvars, structlog.stdlib.add_log_level, lock_fields_of_the_page()],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, structlog.processors.JSONRenderer()],
    )
    handler.setFormatter(formatter)
    log = logging.getLogger("leasehold")
    before = log.level
    log.setLevel(level)
    log.addHandler(handler)
    try:
        yield written
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


@pytest.fixture
def captured() -> Iterator[list[MutableMapping[str, Any]]]:
    """What structlog's own loggers write."""
    capture = LogCapture()
    structlog.configure(processors=[merge_contextvars, capture])
    try:
        yield capture.entries
    finally:
        structlog.reset_defaults()
        clear_contextvars()


def test_a_lost_lease_has_its_name_and_token() -> None:
    with lines() as written, RedisServer() as server, Client.from_url(server.url) as locks:
        with bound_contextvars(request="r1"):
            hold = locks.lock("stock:42", lease=0.3).acquire()
            assert hold is not None
            locks.force_release("stock:42", hold.token)
            until(lambda: hold.lost)
        until(lambda: written)
        (entry,) = written
        assert entry["level"] == "warning"
        assert (entry["lock"], entry["token"]) == ("stock:42", hold.token)
        assert "lost" in entry["event"]
        assert "request" not in entry  # the client's thread has written it
        with pytest.raises(LeaseLost):
            hold.release()


def test_acquire_and_release_have_what_the_caller_bound() -> None:
    with lines(logging.DEBUG) as written, Client.from_url("memory:") as locks:
        with bound_contextvars(request="r1"), locks.lock("stock:42") as hold:
            pass
        assert [(each["lock"], each["token"], each["request"]) for each in written] == [
            ("stock:42", hold.token, "r1"),
            ("stock:42", hold.token, "r1"),
        ]


def test_acquire_and_release_under_asyncio_have_what_the_caller_bound() -> None:
    async def main() -> None:
        async with AsyncClient.from_url("memory:") as locks:
            with bound_contextvars(request="r1"):
                async with locks.lock("stock:42"):
                    pass

    with lines(logging.DEBUG) as written:
        asyncio.run(main())
    assert [(each["lock"], each["request"]) for each in written] == [("stock:42", "r1")] * 2


def test_own_lines_in_the_block_have_name_and_token(captured: list[MutableMapping[str, Any]]) -> None:
    log = structlog.get_logger()

    async def sold() -> None:
        log.info("sold")

    async def main() -> None:
        async with AsyncClient.from_url("memory:") as locks, locks.lock("stock:42") as hold:
            with bound_contextvars(lock=hold.name, token=hold.token):
                await asyncio.gather(sold(), asyncio.create_task(sold()))
            log.info("done")
        assert captured[:2] == [
            {"event": "sold", "log_level": "info", "lock": "stock:42", "token": hold.token} for _ in range(2)
        ]
        assert captured[2] == {"event": "done", "log_level": "info"}

    asyncio.run(main())


def test_events_are_lines_and_a_processor_that_raises_keeps_nobody_from_a_lock(
    captured: list[MutableMapping[str, Any]],
) -> None:
    log = structlog.get_logger()

    def observer(event: Event) -> None:
        log.info(type(event).__name__, lock=event.name, token=getattr(event, "token", None), owner=event.owner)

    def wrong(*_: Any) -> Any:
        raise ZeroDivisionError("of a processor")

    with Client.from_url("memory:", observer=observer) as locks:
        with locks.lock("stock:42") as hold:
            pass
        assert [(each["event"], each["lock"], each["token"]) for each in captured] == [
            ("Acquired", "stock:42", hold.token),
            ("Released", "stock:42", hold.token),
        ]
        structlog.configure(processors=[wrong])
        with locks.lock("stock:42") as hold:
            assert not hold.lost


def test_all_fields_come_with_the_extra_adder() -> None:
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    log = logging.getLogger("leasehold")
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    try:
        with Client.from_url("memory:") as locks, locks.lock("stock:42"):
            pass
    finally:
        log.removeHandler(handler)
        log.setLevel(logging.NOTSET)
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[structlog.stdlib.ExtraAdder(allow=["leasehold"])],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, structlog.processors.JSONRenderer()],
    )
    entry = json.loads(formatter.format(records[0]))
    assert entry["leasehold"]["event"] == "Acquired"
    assert entry["leasehold"]["name"] == "stock:42"
