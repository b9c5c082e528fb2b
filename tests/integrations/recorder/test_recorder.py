"""The recorder: each event a line, at once, in files of bounded size, from several processes."""

from __future__ import annotations

import json
import logging
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from leasehold import Client
from leasehold.events import Acquired, Event, GaveUp, Lost, Queued, Released, RequestFailed
from leasehold.observability.recorder import Recorder, read
from leasehold_lab.runtimes.harnesses import Harness
from support.failing_log import FailingLog
from support.flavors import both


def lines(path: Path) -> list[str]:
    """Return the lines of a record, the oldest file first."""
    number = lambda file: int(file.suffix[1:]) if file.suffix[1:].isdigit() else 0  # noqa: E731
    files = sorted(path.parent.glob(f"{path.name}*"), key=number, reverse=True)
    return [line for file in files for line in file.read_text().splitlines()]


@both
def test_each_event_of_a_hold_is_a_line(harness: Harness, tmp_path: Path) -> None:
    file = tmp_path / "locks.jsonl"

    async def body(harness: Harness) -> None:
        async with harness.client(observer=recorder).lock("a"):
            assert await harness.client(observer=recorder).lock("a").acquire(timeout=0.01) is None

    with Recorder(file) as recorder:
        harness.run(body)
    facts = [json.loads(line) for line in lines(file)]
    assert [each["event"] for each in facts] == ["Acquired", "Queued", "GaveUp", "Released"]
    assert {each["name"] for each in facts} == {"a"}
    assert facts[0]["token"] == facts[3]["token"]
    events = list(read(lines(file)))
    assert [type(event) for event in events] == [Acquired, Queued, GaveUp, Released]
    assert isinstance(queued := events[1], Queued)
    assert queued.held_by == events[0].owner
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_no_secret_is_recorded(tmp_path: Path) -> None:
    file = tmp_path / "locks.jsonl"
    with Recorder(file) as recorder:
        url = "redis://user:hunter2@127.0.0.1:1/0"
        with Client.from_url(url, observer=recorder, response_timeout=0.2) as locks, pytest.raises(ConnectionError):
            locks.lock("a").acquire()
    assert "***" in file.read_text()
    assert "hunter2" not in file.read_text()


def event(number: int) -> Event:
    return Released("a", "host:1:c", 1.0, 1.0, "memory:", "default", "mutex", number, 0.5, True)


def test_the_files_are_bounded_in_size_and_number(tmp_path: Path) -> None:
    file = tmp_path / "locks.jsonl"
    with Recorder(file, max_bytes=2000, files=3) as recorder:
        for number in range(200):
            recorder(event(number))
    assert {each.name for each in tmp_path.iterdir()} == {"locks.jsonl", "locks.jsonl.1", "locks.jsonl.2"}
    assert all(each.stat().st_size < 2300 for each in tmp_path.iterdir())
    tokens = [json.loads(line)["token"] for line in lines(file)]
    assert tokens == list(range(tokens[0], 200)), "the last ones, none left out"


def test_one_file_is_emptied_when_it_is_full(tmp_path: Path) -> None:
    file = tmp_path / "locks.jsonl"
    with Recorder(file, max_bytes=1000, files=1) as recorder:
        for number in range(50):
            recorder(event(number))
    assert [each.name for each in tmp_path.iterdir()] == ["locks.jsonl"]
    assert json.loads(lines(file)[-1])["token"] == 49


WRITER = """
import sys
from leasehold.events import Released
from leasehold.observability.recorder import Recorder

with Recorder(sys.argv[1], max_bytes=20_000, files=50) as recorder:
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(500):
        recorder(Released("a", "host:%s:c" % sys.argv[2], 1.0, 1.0, "memory:", "default", "mutex", number, 0.5, True))
"""


def test_several_processes_share_the_files_and_lose_no_line(tmp_path: Path) -> None:
    file = tmp_path / "locks.jsonl"
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(file), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    facts = [json.loads(line) for line in lines(file)]
    assert len(list(tmp_path.iterdir())) > 3
    for number in range(4):
        mine = [each["token"] for each in facts if each["owner"] == f"host:{number}:c"]
        assert mine == list(range(500))


def test_a_process_that_inherited_the_file_and_records_nothing_blocks_nobody(tmp_path: Path) -> None:
    """A lock of a file lasts until each process that shares the descriptor has closed it."""
    file = tmp_path / "locks.jsonl"
    with Recorder(file, max_bytes=1000) as one, Recorder(file, max_bytes=1000) as other:
        idle = subprocess.Popen(["sleep", "60"], pass_fds=[one._file or -1])
        try:
            for number in range(8):
                one(event(number))
            assert (tmp_path / "locks.jsonl.1").exists()
            recording = threading.Thread(target=other, args=(event(8),))
            recording.start()
            recording.join(5)
            blocked = recording.is_alive()
        finally:
            idle.kill()
            idle.wait()
            recording.join()
    assert not blocked
    assert json.loads(file.read_text().splitlines()[-1])["token"] == 8, "in the new file"


FORKED = """
import os, sys
from pathlib import Path
from leasehold.events import Released
from leasehold.observability.recorder import Recorder

def record(number):
    recorder(Released("a", "host:1:c", 1.0, 1.0, "memory:", "default", "mutex", number, 0.5, True))

def replace(self, target):
    os.write(go, b"x")
    os.read(recorded, 1)
    return usual(self, target)

recorder = Recorder(sys.argv[1], max_bytes=1000)
(told, go), (recorded, tell) = os.pipe(), os.pipe()
if os.fork() == 0:
    os.read(told, 1)
    record(100)
    os.write(tell, b"x")
    os._exit(0)
usual, Path.replace = Path.replace, replace
for number in range(8):
    record(number)
os.wait()
"""


def test_a_forked_process_renames_no_file_while_its_parent_does(tmp_path: Path) -> None:
    file = tmp_path / "locks.jsonl"
    subprocess.run([sys.executable, "-c", FORKED, str(file)], check=True, timeout=10)
    assert {each.name for each in tmp_path.iterdir()} == {"locks.jsonl", "locks.jsonl.1"}
    assert sorted(json.loads(line)["token"] for line in lines(file)) == [*range(8), 100]


KILLED = """
import os, signal, sys
from leasehold import Client
from leasehold.observability.recorder import Recorder

locks = Client.from_url("memory:", observer=Recorder(sys.argv[1]))
hold = locks.lock("a").acquire()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_has_recorded_all(tmp_path: Path) -> None:
    file = tmp_path / "locks.jsonl"
    subprocess.run([sys.executable, "-c", KILLED, str(file)], check=False)
    assert [json.loads(line)["event"] for line in lines(file)] == ["Acquired"]


def test_a_full_disk_keeps_nobody_from_a_lock(caplog: pytest.LogCaptureFixture) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    with Recorder("/dev/full") as recorder, Client.from_url("memory:", observer=recorder) as locks:
        for _ in range(3):
            with locks.lock("a"):
                pass
    assert [record.levelno for record in caplog.records] == [logging.WARNING], "once"
    assert "/dev/full cannot be written" in caplog.text


def test_a_full_disk_is_logged_while_no_mutex_is_held() -> None:
    """A handler of the log has a mutex of its own, and another thread may record an event while it has that one."""
    held = list[bool]()
    with (
        Recorder("/dev/full") as recorder,
        FailingLog(lambda _: held.append(recorder._take.mutex._is_owned()), "cannot be written"),
    ):
        recorder(event(1))
    assert held == [False]


def test_a_record_that_cannot_begin_its_next_file_writes_into_no_other(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    with Recorder(folder / "locks.jsonl", max_bytes=1000) as recorder:
        for number in range(8):
            recorder(event(number))
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
        for number in range(8):
            recorder(event(number))
        others = [tmp_path / f"other{number}" for number in range(20)]
        opened = [file.open("w") for file in others]
        for number in range(8):
            recorder(event(number))
        folder.mkdir()
        recorder(event(9))
        for file in opened:
            file.close()
    assert {file.read_text() for file in others} == {""}
    assert [json.loads(line)["token"] for line in lines(recorder.path)] == [9]


FULL = """
import resource, sys
from leasehold.events import Released
from leasehold.observability.recorder import Recorder

with Recorder(sys.argv[1]) as recorder:
    for number in range(6):
        resource.setrlimit(resource.RLIMIT_FSIZE, (300 if number in (1, 2) else -1, -1))
        recorder(Released("a", "host:1:c", 1.0, 1.0, "memory:", "default", "mutex", number, 0.5, True))
"""


def test_a_line_that_was_cut_off_costs_no_later_one(tmp_path: Path) -> None:
    file = tmp_path / "locks.jsonl"
    subprocess.run([sys.executable, "-c", FULL, str(file)], check=True)
    assert len(lines(file)[1]) < 200, "half of the second"
    assert [getattr(each, "token", None) for each in read(lines(file))] == [0, 3, 4, 5]


def test_after_the_close_nothing_is_recorded(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "locks.jsonl")
    recorder.close()
    recorder.close()
    recorder(event(1))
    assert lines(recorder.path) == []


def test_mistakes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="max_bytes"):
        Recorder(tmp_path / "a", max_bytes=10)
    with pytest.raises(FileNotFoundError):
        Recorder(tmp_path / "none" / "a")
    assert not Recorder.wants(object(), RequestFailed)  # type: ignore[arg-type]


def test_lines_that_are_none_are_left_out() -> None:
    good = json.dumps({"event": "Lost", "name": "a", "owner": "o", "at": 1.0, "time": 1.0, "store": "s"})
    whole = good[:-1] + ', "namespace": "n", "kind": "mutex", "token": 1, "why": "w", "later": 1}'
    assert [type(event) for event in read(["", "{", "[]", '{"event":"No"}', good, whole])] == [Lost]
