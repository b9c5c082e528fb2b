"""What the command line prints of a store that refuses: one line, with the remedy as it can be typed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from leasehold.cli.output import without_secrets
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


def test_the_example_of_a_remedy_is_no_secret() -> None:
    for example in ("redis://:password@host", "mysql://user:password@host:3306/database", "etcd://user:password@host"):
        assert without_secrets(f"write {example}; then retry") == f"write {example}; then retry"
    for url in ("redis://:password@host1", "redis://u:password@host:canary@h", "redis://u:passwords@host"):
        assert "password" not in without_secrets(url)
        assert "canary" not in without_secrets(url)
