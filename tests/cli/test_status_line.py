"""The progress of long work: redrawn on a terminal, and a line now and then in a log."""

from __future__ import annotations

import pytest

from leasehold_lab.commands import status_line
from leasehold_lab.commands.status_line import SAID_EVERY, StatusLine


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(status_line.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_log_gets_a_line_every_ten_seconds(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    line = StatusLine()
    for second in range(36):
        clock.now = 1000.0 + second
        line.update(f"second {second}")
    line.clear()
    assert capsys.readouterr().err == "second 10\nsecond 20\nsecond 30\n"
    assert SAID_EVERY == 10


@pytest.mark.parametrize(("term", "moves"), [("xterm", True), ("dumb", False)])
def test_a_terminal_is_redrawn_unless_it_is_dumb(
    term: str, moves: bool, clock: Clock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", term)
    line = StatusLine()
    line.update("first")
    clock.now += 0.01
    line.update("too soon")
    line.say("done")
    said = capsys.readouterr().err
    assert said.endswith("done\n")
    assert "too soon" not in said
    assert ("first" in said, "done" in said) == (moves, True)
