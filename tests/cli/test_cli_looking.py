"""`leasehold ls`, `show`, `break` and `doctor`: what they print, their JSON, their exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import entry_points

import click
import pytest
from click.testing import Result
from shells import Shell, runner

from leasehold import Client
from leasehold._model import Finding, Severity
from leasehold.cli import group, main
from leasehold.cli.options import Exit
from leasehold.cli.output import printable, without_secrets
from leasehold_lab.servers import RedisServer
from support.patience import until

NASTY = "\x1b]0;owned\x07\x1b[2J\r\n\u202egnp\u200b\u2028\x9b31m\x7f"
LOCK = {"name", "kind", "token", "holders", "waiters", "free_in"}
CONTENDER = {"owner", "host", "pid", "token", "remaining", "meta"}


@pytest.fixture
def locks() -> Iterator[Client]:
    with Client.from_url("memory:cli") as client:
        yield client


def call(*arguments: str, url: str = "memory:cli", text: str | None = None) -> Result:
    return runner().invoke(main, arguments, env={"LEASEHOLD_URL": url}, input=text)


# --- ls and show -----------------------------------------------------------------------------------------------------


def test_ls_shows_a_row_for_each_holder(locks: Client) -> None:
    hold = locks.lock("stock:42", meta="sells").acquire()
    other = locks.lock("mail", meta={"job": "nightly"}).acquire()
    assert hold is not None
    assert other is not None
    head, mail, stock = call("ls").stdout.splitlines()
    assert head.split() == ["NAME", "TOKEN", "HOLDER", "REMAINING", "WAITERS", "META"]
    assert mail.startswith("mail")
    assert '{"job": "nightly"}' in mail
    for part in ("stock:42", str(hold.token), "pid ", " s ", "sells"):
        assert part in stock
    assert call("ls", "sto").stdout.count("\n") == 2
    empty = call("ls", "none")
    assert (empty.exit_code, empty.stdout) == (0, "")
    assert call("ls", "--namespace", "other", "--json").stdout == "[]\n"


def test_a_lock_that_is_only_called_like_an_election_hides_no_other(locks: Client, redis_server: RedisServer) -> None:
    with locks.lock("election/"), locks.lock("other"):
        assert [line.split()[0] for line in call("ls").stdout.splitlines()] == ["NAME", "election/", "other"]
        assert "election/ (mutex)" in call("show", "election/").stdout
    url = f"{redis_server.url}?layout=plain"  # which has no elections
    with Client.from_url(url) as plain, plain.lock("election/a"):
        assert "election/a" in call("ls", url=url).stdout
        assert "election/a (mutex)" in call("show", "election/a", url=url).stdout


def test_a_leader_is_shown_with_the_value_that_it_proclaimed_last(locks: Client) -> None:
    with locks.election("scheduler", value="first") as leadership:
        assert "first" in call("ls").stdout
        leadership.proclaim({"port": 9090})
        for shown in (call("ls").stdout, call("show", "election/scheduler").stdout):
            assert "election/scheduler" in shown
            assert '{"port": 9090}' in shown
            assert "first" not in shown
        (listed,) = json.loads(call("ls", "--json").stdout)
        assert (listed["kind"], listed["holders"][0]["meta"]) == ("election", {"port": 9090})
    assert call("ls").stdout == ""


def test_json_has_its_documented_shape(locks: Client) -> None:
    hold = locks.lock("stock:42", meta={"a": 1}).acquire()
    assert hold is not None
    (listed,) = json.loads(call("ls", "--json").stdout)
    shown = json.loads(call("show", "stock:42", "--json").stdout)
    for record in (listed, shown):
        assert set(record) == LOCK
        assert (record["name"], record["kind"], record["token"]) == ("stock:42", "mutex", hold.token)
        (holder,) = record["holders"]
        assert set(holder) == CONTENDER
        assert (holder["owner"], holder["token"], holder["meta"]) == (hold.owner, hold.token, {"a": 1})
        assert 0 < holder["remaining"] <= 30


def test_show_names_waiters_in_order(sqlite_shell: Shell) -> None:
    sqlite_shell.start("run", "job", "--", "sh", "-c", "echo $$ >pid; exec sleep 60")
    sqlite_shell.file("pid")
    for place in (1, 2, 3):
        sqlite_shell.start("run", "job", "--fair", "--meta", f"waiter {place}", "--", "true")
        until(lambda place=place: len(sqlite_shell.json("show", "job")["waiters"]) == place)
    code, out, _ = sqlite_shell.call("show", "job")
    assert code == 0
    lines = out.splitlines()
    assert lines[1].startswith("held by ")
    assert lines[2] == "waiting: 3"
    assert [line.partition("meta ")[2] for line in lines[3:]] == ["waiter 1", "waiter 2", "waiter 3"]
    assert [line.split()[0] for line in lines[3:]] == ["1.", "2.", "3."]


def test_show_of_a_free_name(locks: Client) -> None:
    free = call("show", "nobody")
    assert (free.exit_code, free.stdout) == (1, "nobody is free: nobody holds it and nobody waits\n")
    assert (call("show", "nobody", "--json").exit_code, call("show", "nobody", "--json").stdout) == (1, "null\n")


# --- what strangers wrote --------------------------------------------------------------------------------------------


def test_no_control_character_reaches_the_terminal(locks: Client) -> None:
    locks.lock(NASTY, meta=NASTY).acquire()
    locks.lock("mapping", meta={NASTY: NASTY}).acquire()
    for arguments in (["ls"], ["show", NASTY], ["show", "mapping"], ["ls", "--json"], ["break", NASTY, "--token", "1"]):
        result = call(*arguments)
        shown = result.stdout + result.stderr
        assert shown
        assert [
            char for char in shown if char != "\n" and char in NASTY and not char.isalnum() and char not in "];["
        ] == []
        assert "\\x1b" in shown or "\\u001b" in shown
    _, *rows = call("ls").stdout.splitlines()
    assert len(rows) == 2
    assert call("break", NASTY, "--yes").exit_code == 0


@pytest.mark.parametrize("arguments", [["nope" + NASTY], ["ls", "--" + NASTY], ["ls", "a", NASTY], ["run", "a", NASTY]])
def test_no_control_character_in_an_error(arguments: list[str]) -> None:
    result = call(*arguments)
    assert result.exit_code in (64, 127)
    assert result.stderr.count("\n") == 1
    assert all(char.isprintable() for char in result.stderr.removesuffix("\n"))


def test_different_texts_are_printed_differently() -> None:
    texts = ["\x1b", "\\x1b", "\\", "\\\\", "\n", "\\n", "é", "e\u0301", "\u00a0", " ", "日本", "\U000e0001", "\ud800"]
    assert len({printable(text) for text in texts}) == len(texts)
    assert printable("plain text: é 日本 😀") == "plain text: é 日本 😀"


# --- break -----------------------------------------------------------------------------------------------------------


def test_break_releases_the_named_holder_only(locks: Client) -> None:
    hold = locks.lock("job", lease=1.6).acquire()
    assert hold is not None
    other = call("break", "job", "--token", str(hold.token + 1))
    assert (other.exit_code, "not broken" in other.stdout) == (1, True)
    hold.raise_if_lost()
    broken = call("break", "job", "--token", str(hold.token))
    assert (broken.exit_code, broken.stdout.startswith("broken: the holder of 'job'")) == (0, True)
    until(lambda: hold.lost)
    assert call("break", "job", "--token", str(hold.token)).exit_code == 1


def test_break_without_a_token_shows_the_holder_and_needs_a_confirmation(locks: Client) -> None:
    hold = locks.lock("job", meta="the nightly").acquire()
    assert hold is not None
    refused = call("break", "job")  # standard input is no terminal
    assert refused.exit_code == 64
    assert f"--token {hold.token}" in refused.stderr
    assert "the nightly" in refused.stderr
    hold.raise_if_lost()
    accepted = json.loads(call("break", "job", "--yes", "--json").stdout)
    assert accepted == {"name": "job", "token": hold.token, "broken": True}
    nobody = call("break", "job", "--yes", "--json")
    assert (nobody.exit_code, json.loads(nobody.stdout)) == (1, {"name": "job", "token": None, "broken": False})


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 1), ("\n", 1)])
def test_break_asks_on_a_terminal(locks: Client, monkeypatch: pytest.MonkeyPatch, answer: str, code: int) -> None:
    hold = locks.lock("job", meta="the nightly").acquire()
    assert hold is not None
    monkeypatch.setattr("leasehold.cli.break_.on_terminal", lambda: True)
    result = call("break", "job", text=answer)
    assert result.exit_code == code
    assert "the nightly" in result.stderr
    assert (locks.inspect("job") is None) == (code == 0)


# --- doctor ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("worst", "code"), [(None, 0), ("OK", 0), ("NOTE", 0), ("WARNING", 1), ("ERROR", 2)])
def test_the_exit_code_of_doctor_is_that_of_the_worst_finding(
    monkeypatch: pytest.MonkeyPatch, worst: str | None, code: int
) -> None:
    severities = [one for one in Severity if worst is not None and one <= Severity[worst]]
    findings = [Finding(one, f"subject {one.name}", f"found {NASTY}", "it means", "do that") for one in severities]
    monkeypatch.setattr(Client, "diagnose", lambda self: findings)
    result = call("doctor", "memory:cli")
    assert result.exit_code == code
    first, *lines = result.stdout.splitlines()
    assert first.startswith("memory:cli (leasehold ")
    shown = [line.split()[0] for line in lines if "subject" in line]
    assert shown == [one.name for one in sorted(severities, reverse=True)]
    assert "\x1b" not in result.stdout
    record = json.loads(call("doctor", "--json").stdout)
    assert set(record) == {"store", "versions", "worst", "findings"}
    assert record["worst"] == (worst or "OK").lower()
    assert [one["severity"] for one in record["findings"]] == [name.lower() for name in shown]


def test_doctor_of_real_stores(shell: Shell) -> None:
    code, out, err = shell.call("doctor", "--json")
    record = json.loads(out)
    assert (code, err) == ({"ok": 0, "note": 0, "warning": 1, "error": 2}[record["worst"]], "")
    assert record["findings"]
    assert shell.call("doctor", shell.url)[0] == code


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["redis://127.0.0.1:1"], 69),
        (["nonsense:"], 64),
        (["no scheme"], 64),
        (["memory:", "--url", "memory:"], 64),
        (["sqlite:/proc/no/such/locks.db"], 69),
    ],
)
def test_doctor_of_an_unavailable_store(arguments: list[str], code: int) -> None:
    result = call("doctor", *arguments)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (code, "", 1)


# --- faults ----------------------------------------------------------------------------------------------------------


def test_an_internal_error_is_one_line_with_its_location(monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(self: Client, prefix: str) -> None:
        raise ValueError("redis://u:canary@h went wrong\nbadly")

    monkeypatch.setattr(Client, "holds", fault)
    result = call("ls")
    assert result.exit_code == 70
    assert result.stderr.startswith("leasehold: internal error of leasehold: ValueError at test_cli_looking.py:")
    assert result.stderr.count("\n") == 1
    assert "canary" not in result.stderr


def test_the_list_of_commands_and_each_help(locks: Client) -> None:
    context = click.Context(main)
    for name in main.list_commands(context):
        assert call(name, "--help").exit_code == 0
        assert f"  {name} " in call("--help").stdout


def test_a_command_of_the_laboratory_says_how_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    own = sorted(point.name for point in entry_points(group=group.GROUP) if point.value.startswith("leasehold_lab."))
    assert sorted(group.LAB) == own
    assert set(own) <= set(group.LINES), "the list of commands would import it for its line"
    monkeypatch.setattr(group, "_added", dict)  # as if it were not installed
    for name in own:
        result = call(name)
        assert result.exit_code == Exit.MISSING, result.output
        assert "./lab" in result.stderr, result.output


def test_secrets_are_removed_from_any_text() -> None:
    for text in (
        "redis://u:canary@h",
        "a (rediss://:can:ary@h:1/0)",
        "x?password=canary&b=c",
        "sentinel_password=canary",
    ):
        assert "ary" not in without_secrets(text)
    assert without_secrets("redis://user@h:1/0") == "redis://user@h:1/0"
