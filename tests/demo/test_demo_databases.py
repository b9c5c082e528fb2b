"""The demo on database servers and on clusters of three: every request is counted, in real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from leasehold import tables
from leasehold_lab.servers import MariaDBServer


def counted(url: str, requests: int, within: float = 110.0) -> tuple[int, int]:
    """Run the demo; return how many requests were counted, and how many were lost without a lock."""
    command = [sys.executable, "-m", "leasehold", "demo", "--url", url, "--requests", str(requests), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=within, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    rows = {row["row"]: row for row in json.loads(done.stdout)["rows"]}
    return rows["leasehold"]["final"], requests - rows["none"]["final"]


@pytest.fixture(params=["mariadb", "postgresql", "etcd_cluster", "zookeeper_ensemble"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "mariadb":
        found: str = request.getfixturevalue("mariadb_url")
        return found
    server: Any = request.getfixturevalue({"postgresql": "postgres_server"}.get(request.param, request.param))
    return str(server.url) + ("/demo" if request.param == "zookeeper_ensemble" else "")


def test_every_update_of_a_few_is_counted(url: str) -> None:
    final, lost = counted(url, 66)
    assert final == 66
    assert lost > 0


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_666_of_666(url: str) -> None:
    final, lost = counted(url, 666, 280.0)
    assert final == 666
    assert lost > 0


@pytest.mark.nightly
def test_666_of_666_by_sessions_with_as_many_connections() -> None:
    with MariaDBServer(config={"max-connections": "1000", "innodb-flush-log-at-trx-commit": "0"}) as server:
        tables.create(server.url)
        assert counted(f"{server.url}?mode=session", 666)[0] == 666
