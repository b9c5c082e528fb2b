"""The command as a process: secrets stay secret, help is fast, click may be missing, ``python -m`` works."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from shells import Shell, runner

from leasehold.cli import main
from leasehold_lab.servers.redis.server import RedisServer

CANARY = "c4n4ry-p4ss"

LOOKING = (
    ["ls"],
    ["show", "job"],
    ["break", "job", "--yes"],
    ["break", "job", "--token", "1"],
    ["doctor"],
    ["doctor", "--json"],
)


def secret_urls(port: int) -> list[str]:
    user = f"user:{CANARY}@"
    return [
        f"redis://{user}127.0.0.1:1/0",  # refused
        f"redis://{user}127.0.0.1:{port}/0",  # wrong password
        f"redis://{user}127.0.0.1:port",
        f"redis://{user}127.0.0.1:{port}/0?nope={CANARY}&password={CANARY}",
        f"redis://{user}127.0.0.1:{port}/no-number",
        f"redis://{user}/?#",
        f"nonsense://{user}host",
        f"redis:/{user}host",
        f"{user}host",
        f"sqlite://{user}host/x",
    ]


def test_no_error_shows_a_password(redis_server: RedisServer) -> None:
    for url in secret_urls(redis_server.port):
        for place, arguments in enumerate(LOOKING):
            given = [arguments[0], "--url", url, *arguments[1:]] if place % 2 else arguments
            result = runner().invoke(main, given, env={"LEASEHOLD_URL": "memory:" if place % 2 else url})
            assert CANARY not in result.output + result.stderr
            assert (result.exit_code in (64, 69), result.stderr.count("\n")) == (True, 1), (url, arguments)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_no_error_of_run_shows_a_password(sqlite_shell: Shell, redis_server: RedisServer, at: int) -> None:
    sqlite_shell.env["LEASEHOLD_URL"] = secret_urls(redis_server.port)[at]
    for command in (["sh", "-c", "exit 3"], ["no-such-command"]):
        code, out, err = sqlite_shell.call("run", "job", "--", *command)
        assert CANARY not in out + err
        assert (code in (64, 69, 127), err.count("\n")) == (True, 1)


@pytest.mark.parametrize(
    "arguments",
    [
        [f"redis://:{CANARY}@h"],
        ["ls", "a", f"redis://:{CANARY}@h"],
        ["doctor", "memory:", f"redis://:{CANARY}@h"],
        ["doctor", f"redis://:{CANARY}@127.0.0.1:1", "--url", f"redis://:{CANARY}@h"],
        ["run", "job", f"redis://:{CANARY}@h"],
        ["run", "job", f"--nope=redis://:{CANARY}@h", "true"],
    ],
)
def test_no_error_shows_a_password_in_the_wrong_place(sqlite_shell: Shell, arguments: list[str]) -> None:
    code, out, err = sqlite_shell.call(*arguments)
    assert code in (64, 127)
    assert CANARY not in out + err


def test_help_is_fast_and_imports_no_command() -> None:
    script = (
        "import sys\nfrom leasehold.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(*sorted(name for name in sys.modules if name.startswith('leasehold.cli.') or name == 'redis'))"
    )
    start = time.monotonic()
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert time.monotonic() - start < 5
    imported = out.splitlines()[-1].split()
    assert imported == [f"leasehold.cli.{name}" for name in ("group", "options", "output")]


def test_without_click_the_error_names_the_install_line() -> None:
    script = "import sys; sys.modules['click'] = None; from leasehold.cli import main; main()"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (3, "")
    assert "pip install 'leasehold[cli]'" in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["ls", "doctor"])
@pytest.mark.parametrize(("driver", "url", "extra"), [
    ("redis", "redis://h", "redis"), ("pymysql", "mysql://app@h/orders", "mysql"),
    ("psycopg", "postgresql://h/orders", "postgres"),
])  # fmt: skip
def test_without_a_driver_the_error_names_the_install_line(command: str, driver: str, url: str, extra: str) -> None:
    script = (
        f"import sys; sys.modules[{driver!r}] = None; from leasehold.cli import main; "
        f"main([{command!r}, '--url', {url!r}])"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == 3
    assert f"pip install 'leasehold[{extra}]'" in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_python_m_is_the_command(sqlite_shell: Shell) -> None:
    code, out, err = sqlite_shell.call("--version")
    assert (code, err) == (0, "")
    assert out.startswith("leasehold, version ")


def test_shells_can_complete(sqlite_shell: Shell) -> None:
    sqlite_shell.env |= {"_LEASEHOLD_COMPLETE": "bash_complete", "COMP_WORDS": "leasehold d", "COMP_CWORD": "1"}
    assert "plain,doctor" in sqlite_shell.call()[1].splitlines()
