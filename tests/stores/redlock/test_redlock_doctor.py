"""`leasehold doctor` on deployments of Redis: it finds each provoked problem; the exit code gives the severity."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import CliRunner

from leasehold.cli.group import main
from leasehold_lab.servers import RedisServer, RedlockNodes

OK, WARNING, ERROR = 0, 1, 2
"""Exit codes; a note has the exit code of no finding."""

EVICTS = {"maxmemory": "1gb", "maxmemory-policy": "allkeys-lru"}


def doctor(url: str) -> tuple[int, dict[str, dict[str, str]]]:
    """Return the exit code and the findings by subject."""
    result = CliRunner().invoke(main, ["doctor", url, "--json"])
    return result.exit_code, {found["subject"]: found for found in json.loads(result.stdout)["findings"]}


@contextmanager
def configured(server: RedisServer, settings: Mapping[str, str]) -> Iterator[None]:
    before: dict[str, Any] = {name: server.command("CONFIG", "GET", name)[1] for name in settings}  # type: ignore[index]
    for name, value in settings.items():
        server.command("CONFIG", "SET", name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            server.command("CONFIG", "SET", name, value)


@pytest.fixture(scope="module")
def lasting() -> Iterator[RedlockNodes]:
    """Three well configured nodes, with clocks of their own; a test that breaks them repairs them."""
    nodes = RedlockNodes(3, append_only=True, config={"appendfsync": "always"})
    for node in nodes.nodes:
        node.give_clock()
    with nodes:
        yield nodes


def test_nodes_as_they_should_be(lasting: RedlockNodes) -> None:
    code, found = doctor(lasting.url)
    assert code == OK
    assert found["nodes"]["severity"] == "ok"
    assert "no quarantine, but nodes keep their data" in found["restart of a node"]["found"]


def test_a_node_that_evicts(lasting: RedlockNodes) -> None:
    node = lasting.nodes[1]
    with configured(node, EVICTS):
        code, found = doctor(lasting.url)
    assert code == ERROR
    assert found[f"127.0.0.1:{node.port} eviction"]["severity"] == "error"


def test_a_node_that_keeps_nothing(lasting: RedlockNodes) -> None:
    node = lasting.nodes[0]
    with configured(node, {"appendonly": "no"}):
        code, found = doctor(lasting.url)
        kept, covered = doctor(f"{lasting.url}?quarantine=60")
    assert code == WARNING
    assert found["restart of a node"]["found"] == f"no quarantine, and forgetful: 127.0.0.1:{node.port}"
    assert (kept, covered["restart of a node"]["severity"]) == (OK, "ok")


def test_a_clock_that_is_off(lasting: RedlockNodes) -> None:
    node = lasting.nodes[2]
    assert node.clock is not None
    node.clock.step(30.0)
    try:
        code, found = doctor(lasting.url)
    finally:
        node.clock.step(-30.0)
    clocks = found["clocks of the nodes"]
    assert (code, clocks["severity"]) == (OK, "note")  # no promise compares them
    assert clocks["found"].startswith(("29.", "30."))
    assert f"127.0.0.1:{node.port}" in clocks["found"]


def test_a_missing_right_is_reported_and_the_node_still_counts_as_answering(
    lasting: RedlockNodes,
) -> None:
    mode = ("on", ">s3cret", "~*", "&*", "+@all")
    for node in lasting.nodes:
        node.command("ACL", "SETUSER", "app", *mode)
    broken = lasting.nodes[1]
    broken.command("ACL", "SETUSER", "app", "-zadd")
    code, found = doctor(lasting.url.replace("//", "//app:s3cret@"))
    assert code == ERROR
    rights = found[f"127.0.0.1:{broken.port} rights"]
    assert (rights["severity"], rights["found"]) == ("error", "lacks +zadd")
    assert "quorum" not in found
    for node in lasting.nodes:
        node.command("ACL", "SETUSER", "app", "+@all", "-info")
    url = lasting.url.replace("//", "//app:s3cret@")
    assert doctor(url)[0] == OK  # doctor only sees less
    code, found = doctor(f"{url}?quarantine=60")
    assert code == ERROR
    assert "lacks the right +info;" in found[f"127.0.0.1:{broken.port} rights"]["found"]


def test_nodes_that_are_down() -> None:
    with RedlockNodes(3) as nodes:
        url = f"{nodes.url}?quarantine=60"
        assert doctor(url)[0] == OK
        nodes.nodes[0].kill()
        code, found = doctor(url)
        assert (code, found["quorum"]["severity"]) == (WARNING, "warning")
        nodes.nodes[1].kill()
        code, found = doctor(url)
        assert (code, found["quorum"]["severity"]) == (ERROR, "error")
        nodes.nodes[2].kill()
        assert CliRunner().invoke(main, ["doctor", url]).exit_code == 69


@pytest.mark.parametrize("deployment", ["redis_replicas", "redis_sentinel", "redis_cluster"])
def test_the_exit_code_on_other_deployments(deployment: str, request: pytest.FixtureRequest) -> None:
    """These test servers keep no data, and a primary that was cut off continues: worth a warning."""
    group = request.getfixturevalue(deployment)
    code, found = doctor(group.url)
    assert code == WARNING
    assert "error" not in {one["severity"] for one in found.values()}
    primary = group.primaries[0] if deployment == "redis_cluster" else group.primary
    with configured(primary, EVICTS):
        assert doctor(group.url)[0] == ERROR
