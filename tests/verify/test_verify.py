"""``leasehold verify``: correct stores keep every promise under every fault, and three classic mistakes are found."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from leasehold._url import parse
from leasehold_lab.history import Promise
from leasehold_lab.servers import RedisServer
from leasehold_lab.verify.clients.process import VerifyError
from leasehold_lab.verify.deployments import PLANS
from leasehold_lab.verify.faults.client_faults import KINDS
from leasehold_lab.verify.run import impossible_faults, read_url

HERE = Path(__file__).parent
WITHIN = 60.0
"""Seconds in which a mistake must be found."""


def verify(*arguments: str, url: str | None = None, **settings: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, **settings}
    if url is not None:
        environment["LEASEHOLD_URL"] = url
    command = [sys.executable, "-m", "leasehold", "verify", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110, check=False)


def report_of(ended: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(ended.stdout)
    except ValueError:
        pytest.fail(f"it ended with {ended.returncode}: {ended.stderr}{ended.stdout}")
    return found


# --- good stores -------------------------------------------------------------------------------------------------


def test_redis_keeps_every_promise_under_every_fault(tmp_path: Path) -> None:
    password = "canary-" + secrets.token_hex(8)
    with RedisServer(password=password) as server:
        page = tmp_path / "report.html"
        ended = verify("--seconds", "20", "--clients", "4", "--json", "--html", str(page), url=server.url)
        report = report_of(ended)
    assert report["ok"], report["violations"] or report["failed_clients"]
    assert ended.returncode == 0
    assert report["not_made"] == {}
    made = {fault["kind"] for fault in report["faults"]}
    assert len(made) >= len(KINDS) - 3, f"20 s are enough for most kinds, once each; made: {made}"
    assert report["figures"]["acquired"] > 100
    assert report["figures"]["writes"] > 100
    assert report["figures"]["hand_over"]["count"] > 0
    for text in (ended.stdout, ended.stderr, page.read_text(encoding="utf-8")):
        assert password not in text


def test_sqlite_keeps_every_promise_and_lists_impossible_faults(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    ended = verify(f"sqlite:{tmp_path}/locks.db", "--seconds", "8", "--clients", "4", "--html", str(page))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("\nkept ") == len(Promise) - 1, ended.stdout  # and the first line
    assert "not injected" in ended.stdout
    assert "the store is reached without a network" in ended.stdout
    drawing = ET.fromstring(page.read_text(encoding="utf-8"))
    text = "".join(drawing.itertext())
    assert "Every promise was kept" in text
    assert "the notice to a holder that it has lost its lock" in text, "the key of the colors"
    attributes = [(name, value) for one in drawing.iter() for name, value in one.items()]
    assert not [name for name, _ in attributes if name.rpartition("}")[2] in ("src", "href", "data", "srcset")]
    assert not any("url(" in value or "import" in value for _, value in attributes)
    style = next(one.text or "" for one in drawing.iter() if one.tag.endswith("style"))
    assert "url(" not in style
    assert "@import" not in style, "the page needs nothing else, from nowhere"
    bars = [one for one in drawing.iter() if one.tag.endswith("rect") and one.get("class") is None]
    assert len(bars) > 50


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(10))
def test_redis_keeps_every_promise_for_a_minute(seed: int) -> None:
    with RedisServer() as server:
        report = report_of(verify(server.url, "--seconds", "60", "--seed", str(seed), "--json"))
    assert report["ok"], report["violations"] or report["failed_clients"]


# --- broken ones -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheme", "options", "promise", "shown"),
    [
        ("broken-release", "--faults stall", "exclusion", "overlap"),
        ("broken-lease", "--faults delay", "exclusion", "overlap"),
        ("broken-wait", "--faults none --lease 3", "wake_up", "no client held"),
    ],
    ids=["release of any holder", "lease counted from the reply", "no check after subscribing"],
)
def test_a_classic_mistake_is_found_within_a_minute(
    scheme: str, options: str, promise: str, shown: str, tmp_path: Path
) -> None:
    until = time.monotonic() + WITHIN
    page = tmp_path / "report.html"
    with RedisServer() as server:
        url = server.url.replace("redis:", f"{scheme}+redis:")
        while (left := until - time.monotonic()) > 5:
            seconds = str(min(15.0, left))
            ended = verify(url, "--seconds", seconds, *options.split(), "--json", "--html", str(page))
            report = report_of(ended)
            if report["promises"][promise]:
                break
        else:
            pytest.fail("a minute was not enough")
    assert ended.returncode == 2
    assert any(shown in violation for violation in report["violations"])
    drawing = ET.fromstring(page.read_text(encoding="utf-8"))
    framed = [one for one in drawing.iter() if one.get("class") == "framed"]
    assert framed, f"the picture shows the holds of {report['violations'][0]}"


# --- the command -------------------------------------------------------------------------------------------------


def test_bad_input_is_refused_before_anything_starts(tmp_path: Path) -> None:
    for arguments, message in (
        (["--faults", "earthquake"], "known faults: stall, kill"),
        (["memory:"], "visible to one process only"),
        (["nothing://here"], "unknown scheme"),
        (["--clients", "1"], "clients"),
        (["redis://127.0.0.1:1"], "unavailable"),
        (["--faults", "server-flush"], "not a fault"),
        (["--servers", "etcd", "--faults", "server-flush"], "not a fault"),
        (["--servers", "redis", "redis://localhost"], "not both"),
        (["--servers", "oracle"], "oracle"),
    ):
        ended = verify(*arguments, url=f"sqlite:{tmp_path}/locks.db")
        assert ended.returncode not in (0, 2), arguments
        assert message in ended.stderr, ended.stderr
        assert "Traceback" not in ended.stderr


def test_a_page_that_cannot_be_written_costs_no_verdict(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/locks.db"
    refused = verify(url, "--seconds", "100", "--html", str(tmp_path / "none" / "page.html"))
    assert (refused.returncode, "make it first" in refused.stderr) == (64, True)
    ended = verify(url, "--seconds", "1", "--clients", "2", "--faults", "none", "--json", "--html", "/dev/full")
    assert report_of(ended)["ok"] is (ended.returncode == 0)
    assert "/dev/full could not be written: No space left on device" in ended.stderr


def test_list_names_every_fault() -> None:
    listed = verify("--list").stdout
    first, *kinds = listed.split("\n\n")
    assert [line.split()[0] for line in first.splitlines()] == list(KINDS)
    assert [block.split()[1].rstrip(":") for block in kinds] == list(PLANS)
    for block, plan in zip(kinds, PLANS.values(), strict=True):
        assert [line.split()[0] for line in block.splitlines()[1:]] == [fault.key for fault in plan.faults]


def test_connection_faults_need_servers_in_the_url() -> None:
    assert impossible_faults(parse("redis://localhost")) == {}
    assert impossible_faults(parse("zookeeper://a,b,c/locks")) == {}
    assert "discover their servers by themselves" in impossible_faults(parse("redis+cluster://a:1"))["cut"]
    assert "without a network" in impossible_faults(parse("sqlite:/tmp/x"))["cut"]
    with pytest.raises(VerifyError):
        impossible_faults(parse("memory:"))


def test_the_namespace_of_a_run_is_empty_afterwards(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/locks.db"
    report = report_of(verify(url, "--seconds", "4", "--faults", "kill", "--json", "--clients", "2"))
    assert report["ok"], report["violations"]
    from leasehold import Client

    namespace = str(report["run"]["namespace"]).split()[0]
    with Client.from_url(url, namespace=namespace) as client:
        assert [info.name for info in client.holds() if info.holders] == []


def test_the_repeat_command_has_no_password() -> None:
    from leasehold_lab.verify.report.run_information import command
    from leasehold_lab.verify.run import Settings

    words = command(Settings(read_url("redis://user:canary@localhost/0"), faults=("stall",)))
    assert "canary" not in words
    assert "--faults stall" in words
