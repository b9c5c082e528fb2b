"""What the command line prints of a store that refuses: one line, with the remedy as it can be typed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from shells import Shell, runner

from leasehold.cli import main
from leasehold.cli.output import without_secrets
from leasehold_lab.demo.result import DemoResult, RowResult, Visit
from leasehold_lab.demo.rows import Guard
from leasehold_lab.servers import RedisServer


@pytest.fixture(scope="module")
def guarded(outlive: set[int]) -> Iterator[RedisServer]:
    with RedisServer(password="canary") as server:
        outlive.add(server.pid)
        yield server


@pytest.mark.parametrize(
    ("password", "remedy"),
    [("", "put the password into the URL: redis://:password@host"), (":wr0ng@", "password in the URL is wrong")],
)
@pytest.mark.parametrize("command", [["ls"], ["doctor"], ["run", "x", "--", "true"]], ids=["ls", "doctor", "run"])
def test_a_password_that_is_missing_or_wrong(
    guarded: RedisServer, command: list[str], password: str, remedy: str
) -> None:
    url = f"redis://{password}127.0.0.1:{guarded.port}"
    # In a process of its own: `run` adopts orphans, and this process would have those of the tests that follow.
    words, env = [sys.executable, "-m", "leasehold", *command], {**os.environ, "LEASEHOLD_URL": url}
    result = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout) == (69, "")
    assert result.stderr.startswith("leasehold: the store is unavailable: cannot connect to Redis at ")
    assert result.stderr.endswith(f"{remedy}\n")
    assert result.stderr.count("\n") == 1
    assert len(result.stderr) < 240


def test_output_that_cannot_be_written_says_nothing_about_the_store(sqlite_shell: Shell) -> None:
    sqlite_shell.start("run", "job", "--", "sh", "-c", "echo $$ >pid; exec sleep 60")
    sqlite_shell.file("pid")
    token = sqlite_shell.json("show", "job")["token"]
    for words in (["ls"], ["ls", "--json"], ["show", "job"], ["doctor"], ["break", "job", "--token", str(token)]):
        with open("/dev/full", "w") as full:
            process = sqlite_shell.start(*words, stdout=full)
            _, err = process.communicate(timeout=20)
        assert (process.returncode, err) == (
            74,
            "leasehold: cannot read or write: [Errno 28] No space left on device\n",
        )
    assert sqlite_shell.json("ls") == []  # it was broken


def test_the_demo_prints_its_result_before_it_writes_files(monkeypatch: pytest.MonkeyPatch) -> None:
    row = RowResult(Guard.LEASEHOLD, 1, 1, 0.5, (Visit(1, 0, 9, 0, None, 0.01),))
    result = DemoResult((row,), 1, 1, "sqlite:", "no proxy", 0.5, {}, "leasehold demo")
    monkeypatch.setattr("leasehold_lab.commands.demo._run", lambda settings: result)
    for words in ["--report"], ["--picture"], ["--json", "--report"]:
        done = runner().invoke(main, ["demo", *words, "/dev/full"])
        assert done.exit_code == 74
        assert "leasehold" in done.stdout
        assert "No space left" in done.stderr


def test_the_example_of_a_remedy_is_no_secret() -> None:
    for example in ("redis://:password@host", "mysql://user:password@host:3306/database", "etcd://user:password@host"):
        assert without_secrets(f"write {example}; then retry") == f"write {example}; then retry"
    for url in ("redis://:password@host1", "redis://u:password@host:canary@h", "redis://u:passwords@host"):
        assert "password" not in without_secrets(url)
        assert "canary" not in without_secrets(url)
