"""``leasehold servers`` prints a URL, its servers work, and they end with it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from contextlib import suppress

import pytest
from shells import Shell, alive

from leasehold import Client
from leasehold_lab.commands.servers import KINDS
from leasehold_lab.servers.redis.resp import Connection
from support.patience import until

SIZES = {
    "redis": 1,
    "replicas": 4,
    "sentinel": 7,
    "cluster": 6,
    "redlock": 5,
    "postgresql": 1,
    "mariadb": 1,
    "zookeeper": 3,
    "etcd": 3,
}


@pytest.mark.parametrize("kind", SIZES)
def test_servers_run_until_they_are_ended(sqlite_shell: Shell, kind: str) -> None:
    KINDS[kind][0]()  # says which program is missing
    process = sqlite_shell.start("servers", kind, "--json")
    assert process.stdout is not None
    said = json.loads(until_brace(process))
    assert said["kind"] == kind
    assert len(said["nodes"]) == SIZES[kind]
    assert said["url"].startswith(("redis://", f"redis+{kind}://", f"{kind}://", "mysql://"))
    assert all(alive(node["pid"]) for node in said["nodes"])
    with Client.from_url(said["url"]) as locks, locks.lock("stock:42") as hold:
        assert hold.token > 0
    if "redis" in said["version"]:
        assert ping(said["nodes"][0]["address"]) == "PONG"
    ending = {"replicas": signal.SIGTERM, "sentinel": signal.SIGHUP, "redlock": signal.SIGKILL}.get(kind, signal.SIGINT)
    process.send_signal(ending)
    process.communicate(timeout=20)
    assert process.returncode == (-ending if ending is signal.SIGKILL else 0)
    until(lambda: not any(alive(node["pid"]) for node in said["nodes"]))


def test_servers_end_with_the_parent_unless_they_were_started_by_nohup(sqlite_shell: Shell) -> None:
    script = 'nohup "$@" >kept & echo $! >pid; "$@" >tied; true'
    wrap = ("sh", "-c", script, "sh")
    parent = sqlite_shell.start("servers", "redis", "--json", wrap=wrap, start_new_session=True)
    try:
        kept, tied = (json.loads(sqlite_shell.file(name, within=20)) for name in ("kept", "tied"))
        parent.kill()
        until(lambda: not alive(tied["nodes"][0]["pid"]))
        assert ping(kept["nodes"][0]["address"]) == "PONG"
        os.kill(int(sqlite_shell.file("pid")), signal.SIGTERM)
        until(lambda: not alive(kept["nodes"][0]["pid"]))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)


def test_servers_are_shown_to_people(sqlite_shell: Shell) -> None:
    process = sqlite_shell.start("servers", "replicas")
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(9)]
    text = "".join(lines)
    assert "1 primary with 3 replicas" in text
    assert text.count("replica ") == 3
    assert "redis://127.0.0.1:" in text
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert err.strip() == "ended"


def test_a_kind_that_is_not_known_is_a_mistake(sqlite_shell: Shell) -> None:
    code, _, err = sqlite_shell.call("servers", "frogs")
    assert (code, "frogs" in err, err.count("\n")) == (64, True, 1)


def test_a_missing_program_is_reported(sqlite_shell: Shell) -> None:
    sqlite_shell.env["PATH"] = "/nowhere"
    code, _, err = sqlite_shell.call("servers", "redlock")
    assert (code, "apt-get install redis-server" in err, err.count("\n")) == (3, True, 1)


def until_brace(process: subprocess.Popen[str]) -> str:
    """Read one JSON object."""
    assert process.stdout is not None
    text = ""
    while True:
        line = process.stdout.readline()
        assert line, "it ended without a word"
        text += line
        try:
            json.loads(text)
        except ValueError:
            continue
        return text


def ping(address: str) -> object:
    host, _, port = address.partition(":")
    link = Connection(socket.create_connection((host, int(port)), timeout=5))
    try:
        return link.command("PING")
    finally:
        link.close()
