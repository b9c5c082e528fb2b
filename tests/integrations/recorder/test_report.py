"""The report of a record: overlaps shown, unknown ends stated, files of several processes in one time line."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

from click.testing import CliRunner, Result

from leasehold import Client
from leasehold.events import Acquired, Event, GaveUp, Lost, Released
from leasehold.observability.recorder import Recorder
from leasehold_lab.commands.report import report

BASE = 1.8e9


def event(kind: type[Event], name: str, owner: str, at: float, *more: object, **facts: object) -> Event:
    return kind(name, f"{owner}:1:c", at, BASE + at, "redis://web-1", "default", "mutex", *more, **facts)  # type: ignore[arg-type]


def recorded(path: Path, *events: Event) -> str:
    with Recorder(path) as recorder:
        for each in events:
            recorder(each)
    return str(path)


def call(*args: str) -> Result:
    return CliRunner().invoke(report, list(args))


def test_two_holders_at_once_are_shown(tmp_path: Path) -> None:
    one = recorded(
        tmp_path / "one.jsonl",
        event(Acquired, "job", "web-1", 1.0, 5, 0.0),
        event(Lost, "job", "web-1", 4.0, 5, "the lease expired", held=3.0),
        event(Acquired, "fine", "web-1", 5.0, 1, 0.25),
        event(Released, "fine", "web-1", 6.0, 1, 1.0, True),
    )
    two = recorded(
        tmp_path / "two.jsonl",
        event(Acquired, "job", "web-2", 3.0, 6, 2.0),
        event(Released, "job", "web-2", 5.0, 6, 2.0, True),
        event(GaveUp, "fine", "web-2", 6.0, 1.0, "timeout"),
    )
    output = tmp_path / "page.html"
    result = call(two, one, "-o", str(output))
    assert result.exit_code == 0
    assert "3 holds of 2 locks. Holders that overlap: 1 pair. Lost: 1 lease." in result.output
    page = ET.parse(output).getroot()
    texts = [text.strip() for text in page.itertext()]
    assert "web-1:1:c" in texts
    assert "web-2:1:c" in texts
    [lost] = [text for text in texts if text.startswith("token 5,")]
    assert "lost: the lease expired" in lost
    assert lost.endswith("another held it at the same time")
    full = call(one, two, "-o", "/dev/full")
    assert isinstance(full.exception, OSError)
    assert "3 holds of 2 locks" in full.output, "it is printed first"
    red = [each for each in page.iter() if each.get("class") == "o" and each.get("y") == "0"]
    assert len(red) == 2, "the time that both share, in the lane of each"
    found = json.loads(call(one, two, "--json").output)
    assert [(lock["name"], lock["lost"], len(lock["overlaps"])) for lock in found] == [("job", 1, 1), ("fine", 0, 0)]
    assert found[1]["not_acquired"] == 1


def test_a_hold_without_an_end_is_no_overlap(tmp_path: Path) -> None:
    """Its process was killed: the next holder came when the lease had expired, which was not recorded."""
    one = recorded(tmp_path / "one.jsonl", event(Acquired, "job", "web-1", 1.0, 5, 0.0))
    two = recorded(
        tmp_path / "two.jsonl",
        event(Acquired, "job", "web-2", 31.0, 6, 29.0),
        event(Released, "job", "web-2", 32.0, 6, 1.0, True),
    )
    output = tmp_path / "page.html"
    [lock] = json.loads(call(one, two, "--json", "-o", str(output)).output)
    assert (lock["no_end"], lock["overlaps"], lock["longest_hold"]) == (1, [], 1.0)
    assert "its end is not recorded" in output.read_text()


WORKER = """
import sys
from leasehold import Client
from leasehold.observability.recorder import Recorder

with Recorder(sys.argv[2], max_bytes=5000) as recorder, Client.from_url(sys.argv[1], observer=recorder) as locks:
    for number in range(20):
        with locks.lock("one"):
            pass
"""


def test_the_files_of_real_processes_are_one_time_line(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/locks.db"
    with Client.from_url(url) as locks, locks.lock("first"):
        pass
    commands = [[sys.executable, "-c", WORKER, url, str(tmp_path / f"{number}.jsonl")] for number in range(3)]
    workers = [subprocess.Popen(command) for command in commands]
    assert [worker.wait(60) for worker in workers] == [0, 0, 0]
    files = [str(file) for file in tmp_path.glob("*.jsonl*")]
    assert len(files) > 3
    output = tmp_path / "page.html"
    result = call(*files, "-o", str(output))
    assert "60 holds of 1 lock. No two holders of a lock overlap. No lease was lost." in result.output
    assert len([each for each in ET.parse(output).getroot().iter() if each.get("class") == "lane"]) == 3


def test_names_are_data_in_the_page(tmp_path: Path) -> None:
    evil = '<script>alert("x")</script>&\x1b[31m'
    file = recorded(
        tmp_path / "a.jsonl",
        event(Acquired, evil, "web-1", 1.0, 5, 0.0),
        event(Released, evil, "web-1", 2.0, 5, 1.0, True),
    )
    output = tmp_path / "page.html"
    assert call(file, "-o", str(output)).exit_code == 0, "printed, too"
    assert "<script" not in output.read_text()
    assert "\x1b" not in call(file).output
    ET.parse(output)


def test_mistakes_say_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("hello\n")
    assert "are these files of a Recorder?" in call(str(tmp_path / "empty")).output
    assert "make it first" in call(str(tmp_path / "empty"), "-o", str(tmp_path / "no" / "page.html")).output
