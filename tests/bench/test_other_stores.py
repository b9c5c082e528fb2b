"""The benchmark on the stores beside Redis: all are measured, requests are counted, and nothing is left behind."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest

from leasehold_lab.bench.contestant import Role
from leasehold_lab.bench.contestants import CONTESTANTS
from leasehold_lab.bench.measures import MEASURES
from leasehold_lab.bench.places import StoreKind, store_kind_of
from leasehold_lab.bench.processes.relay import Relay
from leasehold_lab.bench.processes.server_counters import Observers
from leasehold_lab.bench.run import Settings, takes_part
from leasehold_lab.bench.subjects.base import Scope
from leasehold_lab.bench.subjects.floors import majority, nodes
from leasehold_lab.bench.trials.pairs import shares
from leasehold_lab.servers import RedlockNodes

FLOORS = {
    "redlock-1": "floor-majority",
    "redlock-failing-blocking": "leasehold",
    "sqlite-1": "floor-sqlite",
    "postgresql-1": "floor-postgresql",
    "mysql-1": "floor-mysql",
    "zookeeper-1": "floor-zookeeper",
    "etcd-1": "floor-etcd",
}

REQUESTS = {"postgresql-1": 2, "mysql-1": 2, "zookeeper-1": 2, "etcd-1": 2}
"""Of leasehold for one acquire and release, as the stores' pages say."""


def bench(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "leasehold", "bench", "--seconds", "0.05", "--rounds", "1", *options]
    return subprocess.run(words, capture_output=True, text=True, timeout=110, env={**os.environ, **environment})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    page = tmp_path_factory.mktemp("bench") / "p.md"
    only = [word for key in FLOORS for word in ("--only", key)]
    done = bench(*only, "--json", "--docs", str(page))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    of = {row["key"]: {one["key"]: one for one in row["contestants"]} for row in found["measures"]}
    return SimpleNamespace(found=found, of=of, page=page.with_name("p-details.md").read_text(encoding="utf-8"))


def test_a_run_without_url_starts_and_measures_all_stores(run):
    assert set(run.of) == set(FLOORS)
    for key, floor in FLOORS.items():
        assert {"leasehold", floor} <= run.of[key].keys()
        for one in run.of[key].values():
            assert one["error"] is None, (key, one)
            assert one["rounds"][0]["turns"] > 0
    assert "kazoo" in run.of["zookeeper-1"]
    for program in ("Redis", "PostgreSQL", "MariaDB", "ZooKeeper", "etcd"):
        assert program in run.found["facts"]["server"]


def test_requests_are_counted(run):
    for key in ("postgresql-1", "mysql-1", "zookeeper-1", "etcd-1"):
        assert run.of[key][FLOORS[key]]["server_reads"] == pytest.approx(2, abs=0.05), key
        assert run.of[key]["leasehold"]["server_reads"] == pytest.approx(REQUESTS[key], abs=0.9), key
        assert run.of[key]["floor-synced"]["server_reads"] == 0
    assert run.of["redlock-1"]["leasehold"]["server_reads"] == pytest.approx(10, abs=2)


def test_redlock_is_measured_while_one_server_fails_and_only_on_servers_of_the_run(run, redlock_nodes):
    assert run.of["redlock-failing-blocking"].keys() == {"leasehold", "leasehold-killed", "leasehold-stalled"}
    for state in ("killed", "stalled"):
        rows = f"| Redlock on five servers, one of which fails, .*time with one {state}, of that with all | ≤ 1.2 × |"
        assert re.search(rows.replace("|", r"\|"), run.page)
    assert not run.of["redlock-1"].keys() & {"leasehold-killed", "leasehold-stalled"}
    with pytest.raises(ValueError, match="no measure on Redlock"):
        Settings(url=redlock_nodes.url, only=["redlock-failing"]).measures()


def test_the_page_has_all_stores(run):
    for title in ("Redlock on five servers", "PostgreSQL", "MySQL or MariaDB", "ZooKeeper", "Etcd"):
        assert f"### {title}, acquire + release, 1 thread" in run.page
    assert "| Redlock on five servers, acquire + release, 1 thread | p50 of the floor | ≤ 1.5 × |" in run.page


def test_a_given_database_is_left_clean(postgres_server):
    before = postgres_server.query("SELECT count(*) FROM information_schema.tables")
    done = bench(postgres_server.url, "--only", "postgresql-8", "--json")
    assert done.returncode == 0, done.stderr
    assert [row["place"] for row in json.loads(done.stdout)["measures"]] == ["postgresql"]
    assert postgres_server.query("SELECT count(*) FROM information_schema.tables") == before
    left = postgres_server.query("SELECT count(*) FROM leasehold_name WHERE space LIKE %s", [b"bench-%"])
    assert left == [(0,)]


def test_a_given_mariadb_is_left_clean(mariadb_server, mariadb_url):
    done = bench(mariadb_url, "--only", "mysql-1")
    assert done.returncode == 0, done.stderr
    schema = urlsplit(mariadb_url).path.strip("/")
    assert not mariadb_server.query(f"SELECT name FROM {schema}.leasehold_name WHERE space LIKE 'bench-%'")
    assert not mariadb_server.query("SELECT 1 FROM information_schema.tables WHERE table_name LIKE 'bench\\_%'")


def test_a_given_zookeeper_and_etcd_are_left_clean(zookeeper_server, etcd_server):
    for url, key in ((f"{zookeeper_server.url}/app", "zookeeper-8"), (etcd_server.url, "etcd-8")):
        done = bench(url, "--only", key)
        assert done.returncode == 0, done.stderr
    assert "bench-" not in "".join(etcd_server.keys("leasehold"))
    session = nodes.connect(zookeeper_server.url)
    assert session.exists("/app")
    assert not [child for child in session.get_children("/app") if child.startswith("bench-")]
    session.stop()
    session.close()


def test_missing_tables_are_reported_before_anything_is_measured(postgres_server):
    postgres_server.query("CREATE DATABASE bare")
    try:
        done = bench(postgres_server.url.removesuffix("postgres") + "bare")
        assert done.returncode not in (0, 1)
        assert "leasehold init" in done.stderr
        assert len(done.stderr.splitlines()) == 1
    finally:
        postgres_server.query("DROP DATABASE bare WITH (FORCE)")


def test_a_server_that_is_not_installed_is_named_and_the_others_are_measured(tmp_path):
    done = bench("--only", "etcd-1", "--only", "sqlite-1", "--json", PATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "apt-get install etcd-server" in found["missing"]["etcd"]
    assert [row["key"] for row in found["measures"]] == ["sqlite-1"]
    alone = bench("--only", "etcd-1", PATH=str(tmp_path))
    assert alone.returncode not in (0, 1)
    assert "etcd-server" in alone.stderr


def test_a_file_is_measured_on_the_disk_that_its_url_names(tmp_path):
    done = bench(f"sqlite:{tmp_path}/locks.db", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["facts"]["disk"].endswith(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["rediss://localhost", "redis+cluster://localhost", "memory:"])
def test_a_url_that_cannot_be_measured_is_refused(url):
    done = bench(url)
    assert done.returncode == 64
    assert "cannot be measured" in done.stderr


def test_a_url_chooses_the_measures_of_its_store():
    assert {measure.place for measure in Settings("etcd://localhost").measures()} == {StoreKind.ETCD}
    assert {measure.place for measure in Settings().measures()} == set(StoreKind)
    with pytest.raises(ValueError, match="on etcd 'blocking'; known measures: etcd-1"):
        Settings("etcd://localhost", only=["blocking"]).measures()
    assert store_kind_of("mariadb://localhost/x") is StoreKind.MYSQL


def test_every_measure_has_its_floor_and_leasehold_on_its_store():
    for measure in MEASURES:
        there = [one for one in CONTESTANTS if takes_part(one, measure)]
        assert any(one.role is Role.OURS for one in there)
        for one in there:
            assert measure.place in one.places, (measure.key, one.key)
        floors = {one.key for one in there if one.role is Role.FLOOR or (measure.disturbed and one.disturbance is None)}
        assert floors == {measure.floor, *measure.also} - {""}


def test_the_relay_counts_round_trips_and_not_packets():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        Relay(server.getsockname()) as relay,
        socket.create_connection(("127.0.0.1", relay.port)) as one,
        server.accept()[0] as there,
    ):
        for _ in range(3):
            for part in (b"he", b"llo"):
                one.sendall(part)
                assert there.recv(10) == part
            there.sendall(b"harness")
            assert one.recv(10) == b"harness"
        assert relay.requests == 3
        assert relay.take() == b"hello" * 3
        assert relay.requests == 0


def test_several_servers_are_added_up():
    with RedlockNodes(5) as group:
        scope = Scope(group.url, "bench-sum", 1, "")
        observer = Observers(scope)
        before = observer.read()
        for node in group.nodes:
            node.command("SET", "bench-sum:x", "1")
        done = observer.read().since(before)
        assert done.commands["set"] == 5
        assert done.reads >= 5
        observer.clean("bench-sum")
        assert all(node.command("KEYS", "*") == [] for node in group.nodes)
        observer.close()


def test_the_floor_of_redlock_needs_no_more_than_a_majority():
    with RedlockNodes(5) as group:
        session = majority.Blocking(Scope(group.url, "bench-most", 1, ""))
        take, leave = session.turn("0000001")
        for node in group.nodes[:2]:
            node.pause()
        for _ in range(3):
            assert take()
            assert session.refused("0000001")
            leave()
        for node in group.nodes[:2]:
            node.resume()
        assert take()
        leave()
        session.close()


def test_names_are_divided_among_threads():
    assert [len(one) for one in shares(64, 8)] == [8] * 8
    assert len({name for one in shares(1000, 100) for name in one}) == 1000
