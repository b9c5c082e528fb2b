"""The package's log: what filters and handlers of the program do in it, and what they see."""

from __future__ import annotations

import logging
import sys

import pytest

from leasehold._runtimes.base import interrupts, run_sync
from leasehold._runtimes.log import log
from support.failing_log import FailingLog


def fail(_: str) -> None:
    raise LookupError("outside of a request")


def exit_(_: str) -> None:
    raise SystemExit(143)


def log_each(words: str) -> None:
    log.debug("%s", words)
    log.info("%s", words)
    log.warning("%s", words)
    log.log(logging.ERROR, "%s", words)
    try:
        raise ValueError("a mistake")
    except ValueError:
        log.exception("%s", words)


def test_a_record_names_the_line_that_logs(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "leasehold"):
        log_each("words")
    assert [record.levelname for record in caplog.records] == ["DEBUG", "INFO", "WARNING", "ERROR", "ERROR"]
    assert {(record.funcName, record.getMessage()) for record in caplog.records} == {("log_each", "words")}
    assert "ValueError: a mistake" in caplog.text


def test_what_a_filter_raises_is_shown(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    with FailingLog(fail), caplog.at_level(logging.DEBUG, "leasehold"):
        log_each("words")
    assert capsys.readouterr().err.count("LookupError: outside of a request") == 5


@pytest.mark.parametrize("stderr", [None, object()], ids=["none", "broken"])
def test_without_standard_error_nothing_is_shown(stderr: object, monkeypatch: pytest.MonkeyPatch) -> None:
    with FailingLog(fail), monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stderr)
        log.warning("words")


def test_an_exit_that_a_signal_handler_raises_in_a_filter_ends_the_program() -> None:
    with FailingLog(exit_), pytest.raises(SystemExit):
        log.warning("words")


def test_a_handler_may_use_leasehold_and_a_signal_handler_that_interrupts_that_may_not_wait() -> None:
    """What the package does as it logs does not count as a call; what a handler of the log does counts."""
    found = list[bool]()

    async def call() -> None:
        found.append(interrupts())

    async def logs() -> None:
        log.warning("words")

    async def nested() -> None:
        run_sync(call())

    for each in (call, nested):
        with FailingLog(lambda _, each=each: run_sync(each())):  # type: ignore[misc]
            run_sync(logs())
    assert found == [False, True]
