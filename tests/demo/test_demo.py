"""The demo, end to end in real processes on SQLite, and its arithmetic and drawings on recorded visits."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from leasehold_lab.demo import service
from leasehold_lab.demo.children import Children, nginx_config
from leasehold_lab.demo.report.overlaps import crowded, cut, most_at_once, overlapping_pairs, rest, shelves
from leasehold_lab.demo.report.page import page
from leasehold_lab.demo.report.picture import picture
from leasehold_lab.demo.report.table import table
from leasehold_lab.demo.report.timeline import close_up
from leasehold_lab.demo.result import DemoResult, Failure, RowResult, Visit
from leasehold_lab.demo.rows import Guard
from leasehold_lab.demo.run import Settings, repeat_command
from leasehold_lab.servers import ZooKeeperServer

CODE = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # the parent process may ignore it
import sys
from leasehold.cli import main
main(["demo", *sys.argv[1:]], prog_name="leasehold")
"""
COMMAND = [sys.executable, "-c", CODE]


def visit(start: int, end: int, read: int = 0, service: int = 1, latency: float = 0.001) -> Visit:
    return Visit(service, start, end, read, None, latency)


def leasehold_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=100, check=False)


@contextmanager
def started(*arguments: str, **settings: str) -> Iterator[subprocess.Popen[str]]:
    pipe, there = subprocess.PIPE, {**os.environ, **settings}
    with subprocess.Popen([*COMMAND, *arguments], stdout=pipe, stderr=pipe, text=True, env=there) as demo:
        try:
            yield demo
        finally:
            demo.kill()  # its children end with it


def example() -> DemoResult:
    racing = tuple(visit(10 * i, 10 * i + 25, i // 2, 1 + i % 2, i / 1000) for i in range(20))
    orderly = tuple(visit(10 * i, 10 * i + 9, i, 1 + i % 2, i / 1000) for i in range(20))
    rows = (RowResult(Guard.NONE, 20, 10, 0.5, racing), RowResult(Guard.LEASEHOLD, 20, 20, 0.5, orderly))
    return DemoResult(rows, 20, 2, "sqlite:/tmp/<x> & y", "nginx", 1.5, {"Python": "3.<11>"}, "leasehold demo")


# --- overlaps ------------------------------------------------------------------------------------------------------


def test_sections_that_only_touch_do_not_overlap() -> None:
    sections = [visit(0, 10), visit(10, 20), visit(20, 30)]
    assert overlapping_pairs(sections) == 0
    assert crowded(sections) == []
    assert most_at_once(sections) == 1
    assert shelves(sections) == [0, 0, 0]


def test_overlaps_of_nested_and_staggered_sections() -> None:
    sections = [visit(0, 100), visit(10, 20), visit(15, 30), visit(90, 120)]
    assert overlapping_pairs(sections) == 4  # the first with each other one, and the second with the third
    assert crowded(sections) == [(10, 30), (90, 100)]
    assert most_at_once(sections) == 3
    assert cut(sections[3], crowded(sections)) == [(90, 100)]
    assert shelves(sections) == [0, 1, 2, 1]
    assert rest(sections[0], cut(sections[0], crowded(sections))) == [(0, 10), (30, 90)]
    assert rest(sections[1], cut(sections[1], crowded(sections))) == []


def test_pairs_agree_with_comparing_each_with_each() -> None:
    sections = [visit(i * 7919 % 1000, i * 7919 % 1000 + 1 + i * 104729 % 60) for i in range(300)]
    pairs = sum(a.start < b.end and b.start < a.end for index, a in enumerate(sections) for b in sections[index + 1 :])
    assert overlapping_pairs(sections) == pairs > 0


def test_the_close_up_shows_two_requests_that_read_the_same() -> None:
    near = close_up(example().rows[0].visits)
    one, other = near.twins
    assert one.read == other.read
    assert near.window[0] <= one.start < other.end < near.window[1]
    assert close_up(example().rows[1].visits).twins == ()


# --- numbers -------------------------------------------------------------------------------------------------------


def test_lost_updates_are_what_was_acknowledged_and_not_counted() -> None:
    row = example().rows[0]
    assert (row.lost, row.exact) == (10, False)
    failed = replace(row, final=20, failures=(Failure("x"), Failure("x"), Failure("y")))
    assert failed.lost == 0
    assert not failed.exact
    assert failed.reasons == {"x": 2, "y": 1}


def test_percentiles_are_by_nearest_rank() -> None:
    row = RowResult(Guard.NONE, 100, 100, 1.0, tuple(visit(0, 1, latency=ms / 1000) for ms in range(1, 101)))
    assert row.latency_ms(50) == pytest.approx(50)
    assert row.latency_ms(99) == pytest.approx(99)
    assert replace(row, visits=()).latency_ms(99) is None
    assert replace(row, visits=row.visits[:1]).latency_ms(99) == pytest.approx(1)


def test_passed_needs_exact_locks_and_no_failure_anywhere() -> None:
    result = example()
    none, locked = result.rows
    assert result.passed
    assert not replace(result, rows=(none, replace(locked, final=19))).passed
    assert not replace(result, rows=(replace(none, failures=(Failure("down"),)), locked)).passed
    assert not replace(result, rows=(none,)).passed
    assert "10 of 20 updates were lost" in result.verdict()
    assert "broken" in replace(result, rows=(none, replace(locked, final=19))).verdict()


def test_the_table_aligns_its_columns() -> None:
    lines = table(example().rows, lambda text, good: text).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[0].index("final count") + len("final count") == lines[2].index("10 of 20") + len("10 of 20")
    assert lines[3].startswith("leasehold ")


def test_the_command_to_repeat_a_run_has_no_password() -> None:
    command = repeat_command(Settings("redis://me:sesame@localhost:6379/0", 10, 3, True))
    assert "sesame" not in command
    assert command.endswith("--requests 10 --services 3 --nginx")


# --- drawings ------------------------------------------------------------------------------------------------------


def test_the_page_is_well_formed_and_self_contained() -> None:
    html = page(example())
    root = ElementTree.fromstring(html.removeprefix("<!DOCTYPE html>"))
    assert_self_contained(html)
    none, locked = root.findall(".//section")
    assert count_overlaps(none) > 0
    assert count_overlaps(locked) == 0
    assert "both read" in "".join(none.itertext())
    assert "read what the one before it had written" in "".join(locked.itertext())
    assert "sqlite:/tmp/<x> & y" in "".join(root.itertext())
    assert "$" not in html


def test_the_page_reports_that_no_request_succeeded() -> None:
    result = example()
    down = RowResult(Guard.NONE, 2, 0, 0.1, (), (Failure("<down>"), Failure("<down>")))
    html = page(replace(result, rows=(down, result.rows[1])))
    root = ElementTree.fromstring(html.removeprefix("<!DOCTYPE html>"))
    text = "".join(root.itertext())
    assert "2 × <down>" in text
    assert "nothing to draw" in text


def test_the_picture_is_well_formed_and_self_contained() -> None:
    svg = picture(example())
    root = ElementTree.fromstring(svg)
    assert_self_contained(svg)
    assert "prefers-color-scheme" in svg
    text = "".join(root.itertext())
    assert "10 of 20, 10 lost" in text
    assert "20 of 20, none lost" in text


def test_a_page_of_a_large_run_stays_light() -> None:
    racing = tuple(visit(1000 * i, 1000 * i + 900_000, i // 300, 1 + i % 2, 0.5) for i in range(666))
    row = RowResult(Guard.NONE, 666, 3, 1.0, racing)
    html = page(replace(example(), rows=(row, row, row, row)))
    assert len(html.encode()) < 1_500_000


# --- nginx ---------------------------------------------------------------------------------------------------------


def test_nginx_never_sends_a_request_twice(tmp_path: Path) -> None:
    config = nginx_config(tmp_path, 8000, [1, 2])
    assert "proxy_next_upstream off" in config
    assert "listen 127.0.0.1:8000" in config


def test_a_missing_nginx_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with Children(tmp_path) as children, pytest.raises(Exception, match="nginx is not installed"):
        children.nginx([1])


# --- end to end ----------------------------------------------------------------------------------------------------


def test_on_sqlite_leasehold_is_exact_and_no_lock_loses(tmp_path: Path) -> None:
    report, drawing = tmp_path / "report.html", tmp_path / "demo.svg"
    done = leasehold_demo("--requests", "60", "--json", "--report", str(report), "--picture", str(drawing))
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    rows = {row["row"]: row for row in said["rows"]}
    assert said["passed"]
    assert (rows["leasehold"]["final"], rows["leasehold"]["lost"]) == (60, 0)
    assert rows["leasehold"]["overlapping_pairs"] == 0
    if shutil.which("redis-server"):
        assert (rows["redlock"]["final"], rows["redlock"]["errors"], rows["redlock"]["overlapping_pairs"]) == (60, 0, 0)
    assert rows["none"]["lost"] > 0
    assert rows["none"]["final"] + rows["none"]["lost"] == 60
    assert rows["none"]["overlapping_pairs"] > 0
    assert all(row["errors"] == 0 and row["requests_per_second"] > 0 for row in said["rows"])
    root = ElementTree.fromstring(report.read_text().removeprefix("<!DOCTYPE html>"))
    sections = dict(zip(rows, root.findall(".//section"), strict=True))
    assert count_overlaps(sections["none"]) > 0
    assert count_overlaps(sections["leasehold"]) == 0
    assert_self_contained(report.read_text())
    assert report.read_text().count("on the same axis for all rows") == len(sections)
    ElementTree.fromstring(drawing.read_text())


def test_without_options_it_prints_a_table_and_a_summary() -> None:
    done = leasehold_demo("--requests", "20")
    assert done.returncode == 0, done.stderr
    assert "thread lock in each process" in done.stdout
    assert "20 of 20" in done.stdout
    assert "with leasehold all 20 updates were counted" in done.stdout
    assert "leasehold: 20 requests ..." in done.stderr


@pytest.mark.parametrize("requests", [222, pytest.param(666, marks=pytest.mark.nightly)])
def test_on_zookeeper_leasehold_is_exact(zookeeper_server: ZooKeeperServer, requests: int) -> None:
    done = leasehold_demo("--url", f"{zookeeper_server.url}/demo", "--requests", str(requests), "--json")
    assert done.returncode == 0, done.stderr
    rows = {row["row"]: row for row in json.loads(done.stdout)["rows"]}
    assert (rows["leasehold"]["final"], rows["leasehold"]["errors"]) == (requests, 0)
    assert rows["leasehold"]["overlapping_pairs"] == 0
    assert rows["none"]["lost"] > 0
    assert rows["thread"]["lost"] >= requests / 3, "the two services work at the same time"
    if "redlock" in rows:
        assert rows["redlock"]["seconds"] < 10 * rows["leasehold"]["seconds"]


def test_through_nginx() -> None:
    if not has_nginx():
        message = "nginx is not installed, so the demo was not run through it"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    done = leasehold_demo("--requests", "60", "--nginx", "--services", "3", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["balancer"] == "nginx"
    assert [row["final"] for row in said["rows"] if row["row"] == "leasehold"] == [60]


def test_requests_that_fail_are_counted_and_shown() -> None:
    with started("--requests", "200", "--json") as demo:
        assert demo.stderr is not None
        assert "no lock: 200" in demo.stderr.readline()
        os.kill(next(pid for pid in descendants(demo.pid) if runs(pid, service.__name__)), signal.SIGKILL)
        said = json.loads(demo.communicate(timeout=60)[0])
    locked = next(row for row in said["rows"] if row["row"] == "leasehold")
    assert (demo.returncode, said["passed"]) == (1, False)
    assert (locked["errors"], locked["answered"], locked["final"]) == (100, 100, 100)
    assert sum(locked["reasons"].values()) == 100


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--url", "memory:"], 1, "one process only"),
        (["--url", "nonsense"], 64, "no scheme"),
        (["--url", "what://x"], 64, "unknown scheme"),
        (["--requests", "0"], 64, "--requests"),
        (["--report", "/no/such/folder/x.html"], 64, "does not exist"),
    ],
)
def test_bad_input_is_refused_at_once(arguments: list[str], code: int, words: str) -> None:
    began = time.monotonic()
    done = leasehold_demo(*arguments)
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_no_child_process_survives_the_demo(sent: signal.Signals, tmp_path: Path) -> None:
    arguments = ["--requests", "3000", *(["--nginx"] if has_nginx() else [])]
    with started(*arguments, TMPDIR=str(tmp_path)) as demo:
        assert demo.stderr is not None
        assert "no lock: 3000" in demo.stderr.readline()
        children = descendants(demo.pid)
        assert len(children) >= 2
        demo.send_signal(sent)
        complaints = demo.communicate(timeout=30)[1]
    assert "Traceback" not in complaints
    assert demo.returncode == (-9 if sent is signal.SIGKILL else 128 + sent)
    until = time.monotonic() + 10
    while (left := [pid for pid in children if alive(pid)]) and time.monotonic() < until:
        time.sleep(0.05)
    assert left == []
    assert sent == signal.SIGKILL or not list(tmp_path.iterdir())


# --- means ---------------------------------------------------------------------------------------------------------


def count_overlaps(element: ElementTree.Element) -> int:
    return sum(rect.get("class") == "o" for rect in element.iter("rect"))


def assert_self_contained(text: str) -> None:
    assert not re.search(r"(src|href)\s*=|url\(|@import|<script|<link", text)
    assert set(re.findall(r"https?://[^\s\"'<]+", text)) <= {"http://www.w3.org/2000/svg"}


def has_nginx() -> bool:
    return any(Path(folder, "nginx").exists() for folder in [*os.get_exec_path(), "/usr/sbin"])


def descendants(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [found for child in map(int, children) for found in (child, *descendants(child))]


def runs(pid: int, module: str) -> bool:
    return module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
