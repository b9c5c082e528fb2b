"""`leasehold ls` in order, repeated, and with long names; colors; exit codes of what needs no store."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from shells import ON_TERMINAL, Shell

from leasehold import Client
from leasehold._model import Finding, Severity
from leasehold.cli import main
from leasehold.cli.group import LazyGroup
from leasehold.cli.output import table
from support.patience import until

LONG = "warehouse/" + "aisle/" * 30 + "end"


@pytest.fixture
def locks() -> Iterator[Client]:
    with Client.from_url("memory:list") as client:
        yield client


def call(*arguments: str, **env: str) -> Result:
    return CliRunner().invoke(main, arguments, env={"LEASEHOLD_URL": "memory:list", **env})


# --- the order -------------------------------------------------------------------------------------------------------


def test_ls_is_sorted_by_name_waiters_or_time_remaining(sqlite_shell: Shell) -> None:
    with Client.from_url(sqlite_shell.url) as client:
        holds = [client.lock(name, lease=lease).acquire() for name, lease in (("a", 300), ("b", 100), ("c", 200))]
        assert None not in holds
        sqlite_shell.start("run", "c", "--", "true")
        until(lambda: len(sqlite_shell.json("show", "c")["waiters"]) == 1)
        for words, order in (((), "abc"), (("waiters",), "cab"), (("remaining",), "bca"), (("name",), "abc")):
            sort = [f"--sort={word}" for word in words]
            assert [one["name"] for one in sqlite_shell.json("ls", *sort)] == list(order)
            assert [row[0] for row in sqlite_shell.call("ls", *sort)[1].splitlines()[1:]] == list(order)


# --- widths ----------------------------------------------------------------------------------------------------------


def test_a_long_name_is_shortened_on_a_terminal_only() -> None:
    rows = [(LONG, "1", "m" * 30), ("倉庫" * 40, "2", ""), ("short", "3", "")]
    for columns in (40, 80, 120):
        head, *lines = table(("NAME", "TOKEN", "META"), rows, columns).splitlines()
        width = head.index("TOKEN")
        assert [line[0] for line in lines] == ["w", "倉", "s"]
        assert lines[0][: width - 2].endswith("…")
        assert all(sum(2 if char in "倉庫" else 1 for char in line) <= columns for line in lines)
        assert lines[2].split() == ["short", "3"]
    head, *lines = table(("NAME", "TOKEN", "META"), rows).splitlines()
    assert LONG in lines[0]
    assert head.index("TOKEN") == lines[2].index("3") == 62  # only its own row moved


# --- ls --watch ------------------------------------------------------------------------------------------------------


def test_without_a_terminal_a_new_table_follows_each_time(shell: Shell) -> None:
    with Client.from_url(shell.url, namespace=shell.namespace) as client:
        hold = client.lock("job").acquire()
        assert hold is not None
        watching = shell.start("ls", "jo", "--watch", "0.1s")
        assert watching.stdout is not None
        heads = 0
        while heads < 3:
            heads += watching.stdout.readline().startswith("NAME ")
        watching.send_signal(signal.SIGINT)
        out, err = watching.communicate(timeout=10)
        assert (watching.returncode, err) == (130, "")
        assert "\x1b" not in out


class Screen:
    """A pseudo-terminal of 60 columns and 8 lines with one command, and all that it wrote."""

    def __init__(self, shell: Shell, *arguments: str, **env: str) -> None:
        self._keys, line = pty.openpty()
        shell.env.update({"COLUMNS": "60", "LINES": "8", "TERM": "xterm", **env})
        streams = {"stdin": line, "stdout": line, "stderr": line}
        self.process = shell.start(*arguments, wrap=ON_TERMINAL, start_new_session=True, **streams)
        os.close(line)
        self.text = ""

    def read_until(self, done: Callable[[str], object]) -> str:
        while not done(self.text):
            try:
                self.text += os.read(self._keys, 4096).decode()
            except OSError:
                pytest.fail(f"it ended too early: {self.text!r}")
        return self.text

    def press(self, key: bytes) -> None:
        os.write(self._keys, key)

    def close(self) -> None:
        os.close(self._keys)


@pytest.mark.parametrize(("term", "redraws"), [("xterm", True), ("dumb", False)])
def test_a_terminal_is_redrawn_until_ctrl_c(sqlite_shell: Shell, term: str, redraws: bool) -> None:
    with Client.from_url(sqlite_shell.url) as client:
        holds = [client.lock(name).acquire() for name in ("job", LONG, *map(str, range(9)))]
        assert None not in holds
        screen = Screen(sqlite_shell, "ls", "--watch", "0.1", TERM=term)
        text = screen.read_until(lambda text: text.count("NAME ") >= 3)
        screen.press(b"\x03")
        assert screen.process.wait(10) == 130
        screen.close()
    assert ("\x1b[H" in text) is redraws
    plain = re.sub(r"\x1b\[[HJK]", "", text)
    assert all(len(line) <= 60 for line in plain.splitlines())
    assert ("more lines" in plain) is redraws


def test_watching_begins_at_once_and_takes_a_default() -> None:
    context = click.Context(main)
    ls = main.get_command(context, "ls")
    assert ls is not None
    assert ls.make_context("ls", ["p", "--watch"]).params["watch"] == 2.0
    assert ls.make_context("ls", ["p", "--watch", "1m"]).params["watch"] == 60.0
    assert ls.make_context("ls", ["p"]).params["watch"] is None
    assert call("ls", "--watch", "0").exit_code == 64


# --- colors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "colored"),
    [
        ({}, False),  # no terminal
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": "0"}, False),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
    ids=["none", "forced", "not forced", "dumb but forced", "both"],
)
def test_colors_follow_the_environment(monkeypatch: pytest.MonkeyPatch, env: dict[str, str], colored: bool) -> None:
    findings = [Finding(Severity.OK, "subject", "found", "", "")]
    monkeypatch.setattr(Client, "diagnose", lambda self: findings)
    unset = {"NO_COLOR": None, "FORCE_COLOR": None}
    result = CliRunner().invoke(main, ["doctor"], env={**unset, "LEASEHOLD_URL": "memory:list", **env})
    assert ("\x1b[" in result.stdout) is colored


@pytest.mark.parametrize(
    ("env", "colored"), [({}, True), ({"TERM": "dumb"}, False), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True)]
)
def test_colors_on_a_terminal(sqlite_shell: Shell, env: dict[str, str], colored: bool) -> None:
    sqlite_shell.env.pop("NO_COLOR", None)
    sqlite_shell.env.pop("FORCE_COLOR", None)
    screen = Screen(sqlite_shell, "doctor", **env)
    text = screen.read_until(lambda text: re.search(r"\d+ ok\r\n$", text))
    screen.process.wait(10)
    screen.close()
    assert ("\x1b[32m" in text) is colored


@pytest.mark.parametrize("color", [True, False])
def test_a_command_of_another_distribution_is_colored_as_the_group_is(
    color: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = click.Command("theirs", callback=lambda: click.secho("red", fg="red"))
    monkeypatch.setattr(LazyGroup, "get_command", lambda self, ctx, name: command)
    assert call("theirs", **{"FORCE_COLOR": "1"} if color else {"NO_COLOR": "1"}).stdout == (
        "\x1b[31mred\x1b[0m\n" if color else "red\n"
    )


# --- exit codes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("worst", "fail_on", "code"),
    [
        (Severity.NOTE, "warning", 0),
        (Severity.WARNING, "warning", 1),
        (Severity.WARNING, "error", 0),
        (Severity.ERROR, "warning", 2),
        (Severity.ERROR, "error", 2),
    ],
)
def test_doctor_fails_on_what_is_asked(
    monkeypatch: pytest.MonkeyPatch, worst: Severity, fail_on: str, code: int
) -> None:
    monkeypatch.setattr(Client, "diagnose", lambda self: [Finding(worst, "subject", "found", "", "")])
    assert call("doctor", "--fail-on", fail_on).exit_code == code
    assert json.loads(call("doctor", "--fail-on", fail_on, "--json").stdout)["worst"] == worst.name.lower()


def test_the_bare_command_is_a_mistake_and_prints_the_help() -> None:
    bare = call()
    assert (bare.exit_code, bare.stdout) == (64, "")
    assert bare.stderr == call("--help").stdout
    assert call("--help").exit_code == 0
    page = (Path(__file__).parents[2] / "docs/cli.md").read_text(encoding="utf-8")
    assert "`leasehold` alone prints what is installed of both lists on standard error, and exits with 64" in page


@pytest.mark.parametrize("words", [[], ["--print"]])
@pytest.mark.parametrize("url", ["sqlite:/locks.db", "redis://h", "etcd://h", "memory:"])
def test_init_of_a_store_that_needs_no_tables(url: str, words: list[str]) -> None:
    result = call("init", url, *words)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"leasehold: {url.partition(':')[0]}: needs no tables; it is ready to use\n"


def test_durations_with_units_are_taken_by_run(sqlite_shell: Shell) -> None:
    sqlite_shell.start("run", "job", "--lease", "2m", "--", "sh", "-c", "echo $$ >pid; exec sleep 60")
    sqlite_shell.file("pid")
    assert 110 < sqlite_shell.json("show", "job")["holders"][0]["remaining"] <= 120
    begun = time.monotonic()
    assert sqlite_shell.call("run", "job", "--timeout", "200ms", "--", "true")[0] == 75
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize("words", [["ls", "--watch"], ["ui", "--every"], ["top", "--interval"]])
@pytest.mark.parametrize("pause", ["inf", "nan", "2h", "0"])
def test_a_pause_that_is_too_short_or_too_long_is_a_mistake(words: list[str], pause: str) -> None:
    result = call(*words, pause)
    assert (result.exit_code, result.stdout) == (64, "")
    assert f"'{pause}' must be 0.1 s at least and 3600 s at most" in result.stderr
