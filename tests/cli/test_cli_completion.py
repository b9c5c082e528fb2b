"""`leasehold completion`, and the names that commands complete."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from shells import Shell, runner

from leasehold import Client
from leasehold.cli import main
from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.servers import RedisServer


@pytest.fixture
def held(shell: Shell) -> Iterator[Shell]:
    """A shell whose store has locks that are held."""
    with Client.from_url(shell.url, namespace=shell.namespace) as client:
        names = ("stock:42", "stock:43", "mail", "stock; rm x", "$(rm x)", "-flag", "stock\n1")
        holds = [client.lock(name).acquire() for name in names]
        assert None not in holds
        yield shell


def proposals(shell: Shell, line: str) -> list[str]:
    shell.env.update(COMP_LINE=line, _LEASEHOLD_COMPLETE="bash_complete")
    _, out, err = shell.call()
    assert err == ""
    return out.split()  # click prints an empty line if there is nothing


def proposed(shell: Shell, line: str) -> list[str]:
    """Ask again while nothing is proposed: on a busy machine the half second for it may pass."""
    return next(filter(None, (proposals(shell, line) for _ in range(20))), [])


def test_names_that_are_held_are_completed(held: Shell) -> None:
    for command in ("show", "break", "run", "run --fair --lease 5m"):
        assert proposed(held, f"leasehold {command} ") == ["plain,mail", "plain,stock:42", "plain,stock:43"]
        assert proposed(held, f"leasehold {command} m") == ["plain,mail"]
        assert proposals(held, f"leasehold {command} none") == []
    assert proposed(held, "leasehold show stock:4") == ["plain,42", "plain,43"]  # bash has "stock:" already
    assert proposals(held, "leasehold show --namespace other ") == []
    assert "plain,--fail-on" in proposals(held, "leasehold doctor --f")


@pytest.mark.parametrize("url", ["nosuch://h", "redis://127.0.0.1:1", "redis://:wrong@no.such.host.invalid", "%"])
def test_nothing_is_proposed_where_the_store_fails(sqlite_shell: Shell, url: str) -> None:
    sqlite_shell.env["LEASEHOLD_URL"] = url
    assert proposals(sqlite_shell, "leasehold show ") == []


def test_nothing_is_proposed_for_a_command_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasehold.cli.group._added", dict)
    env = {"COMP_LINE": "leasehold demo --", "_LEASEHOLD_COMPLETE": "bash_complete"}
    result = runner().invoke(main, env=env, prog_name="leasehold")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")


def test_a_silent_store_delays_the_shell_by_less_than_a_second(sqlite_shell: Shell, redis_server: RedisServer) -> None:
    with FaultProxy(redis_server.port) as proxy:
        sqlite_shell.env["LEASEHOLD_URL"] = f"redis://127.0.0.1:{proxy.port}"
        begun = time.monotonic()
        proposals(sqlite_shell, "leasehold show no/such/")
        answered = time.monotonic()
        proxy.deaf()
        assert proposals(sqlite_shell, "leasehold show no/such/") == []
        took = time.monotonic() - answered - (answered - begun)
        assert took < 1.0
        proxy.heal()


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell_name", ["bash", "zsh", "fish"])
def test_install_writes_what_is_printed_and_says_where(shell_name: str, tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "SHELL": f"/bin/{shell_name}", "XDG_DATA_HOME": None, "XDG_CONFIG_HOME": None}
    printed = runner().invoke(main, ["completion"], env=env)
    installed = runner().invoke(main, ["completion", "install"], env=env)
    assert (printed.exit_code, installed.exit_code) == (0, 0)
    (written,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert written.read_text() == printed.stdout
    assert installed.stdout.startswith(f"written: {written}\n")
    assert "_LEASEHOLD_COMPLETE" in printed.stdout
    assert runner().invoke(main, ["completion", shell_name]).stdout == printed.stdout
    if shutil.which(shell_name):
        assert subprocess.run([shell_name, "-n", str(written)], check=True, capture_output=True).stderr == b""


@pytest.mark.parametrize("words", [[], ["tcsh"], ["bash", "zsh"], ["install", "tcsh"], ["install", "install"]])
def test_a_shell_that_is_not_known(words: list[str]) -> None:
    result = runner().invoke(main, ["completion", *words], env={"SHELL": "/bin/tcsh"})
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (64, "", 1)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    env = {"XDG_DATA_HOME": str(tmp_path / "file"), "SHELL": "/bin/bash"}
    result = runner().invoke(main, ["completion", "install"], env=env)
    assert (result.exit_code, result.stderr.count("\n")) == (64, 1)
    assert "cannot be written" in result.stderr


def test_without_a_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(number: int) -> None:
        raise KeyError(number)

    monkeypatch.setattr("pwd.getpwuid", unknown)
    env = {"HOME": None, "XDG_DATA_HOME": None, "SHELL": "/bin/bash"}
    result = runner().invoke(main, ["completion", "install"], env=env)
    assert (result.exit_code, result.stderr.count("\n")) == (64, 1)
    assert "no home directory; set HOME" in result.stderr


def test_bash_itself_completes_a_name_with_a_colon(held: Shell, tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    command = tmp_path / "leasehold"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m leasehold "$@"\n')
    command.chmod(0o755)
    script = tmp_path / "script"
    script.write_text(runner().invoke(main, ["completion", "bash"]).stdout)
    asks = (
        f"source {script}; COMP_LINE='leasehold show stock:4 --json' COMP_POINT=22; "
        f"_leasehold_completion {command} 4 :; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    env = {key: value for key, value in held.env.items() if not key.startswith(("COMP_", "_LEASEHOLD"))}

    def ask() -> tuple[str, str]:
        done = subprocess.run([bash, "--norc", "-c", asks], env=env, capture_output=True, text=True, timeout=20)
        return done.stdout, done.stderr

    answers = (ask() for _ in range(20))
    assert next(answer for answer in answers if answer != ("\n", "")) == ("42\n43\n", "")  # as `proposed`
