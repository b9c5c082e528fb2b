"""Guarded files: a write with an older token changes nothing."""

from __future__ import annotations

import multiprocessing
import os
import threading
from pathlib import Path

import pytest

from leasehold.guards import Stale, file

# --- files -----------------------------------------------------------------------------------------------------


def test_a_file_is_replaced_by_newer_holders_only(tmp_path: Path) -> None:
    path = tmp_path / "report.txt"
    assert file.fence_of(path) == 0
    file.write(path, b"first", token=5)
    file.write(path, b"again", token=5)
    file.write(path, b"newer", token=12)
    with pytest.raises(Stale) as stale:
        file.write(path, b"older", token=7)
    assert stale.value.fence == 12
    assert path.read_bytes() == b"newer"
    assert file.fence_of(path) == 12
    assert sorted(one.name for one in tmp_path.iterdir()) == ["report.txt", "report.txt.fence"]


def test_a_link_and_its_target_have_one_fence(tmp_path: Path) -> None:
    """The target of a symbolic link is replaced, not the link: others write to it by another path."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "other").symlink_to("folder", target_is_directory=True)
    real, link = tmp_path / "folder" / "report.txt", tmp_path / "current"
    link.symlink_to(Path("other", "report.txt"))
    file.write(link, b"first", token=5)  # the target is not there yet
    assert link.is_symlink()
    for path in (link, real, tmp_path / "other" / "report.txt"):
        assert path.read_bytes() == b"first"
        assert file.fence_of(path) == 5
        with pytest.raises(Stale):
            file.write(path, b"older", token=4)
    file.write(real, b"newer", token=6)
    with pytest.raises(Stale):
        file.write(link, b"older", token=5)
    assert link.read_bytes() == b"newer"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["current", "folder", "other"]


def test_a_crash_before_the_file_is_replaced_refuses_the_older_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.txt"
    file.write(path, b"first", token=5)

    def crash(*_: object) -> None:
        raise InterruptedError

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", crash)
        with pytest.raises(InterruptedError):
            file.write(path, b"newer", token=7)
    with pytest.raises(Stale):
        file.write(path, b"older", token=6)
    assert path.read_bytes() == b"first"
    file.write(path, b"again", token=7)
    assert path.read_bytes() == b"again"


def test_a_slow_write_delays_the_next_and_does_not_undo_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, replace, inside, go_on = tmp_path / "report.txt", os.replace, threading.Event(), threading.Event()

    def slow(source: Path, target: Path) -> None:
        if Path(source).read_bytes() == b"older":
            inside.set()
            assert go_on.wait(10)
        replace(source, target)

    monkeypatch.setattr(os, "replace", slow)
    older = threading.Thread(target=file.write, args=(path, b"older"), kwargs={"token": 5})
    newer = threading.Thread(target=file.write, args=(path, b"newer"), kwargs={"token": 9})
    older.start()
    assert inside.wait(10)
    newer.start()
    newer.join(0.3)
    go_on.set()
    older.join()
    newer.join()
    assert path.read_bytes() == b"newer"
    assert file.fence_of(path) == 9


def _write(path: Path, token: int) -> None:
    try:
        file.write(path, b"%d" % token, token=token)
    except Stale:
        pass


def test_concurrent_writers_of_a_file_leave_the_highest_token(tmp_path: Path) -> None:
    path = tmp_path / "report.txt"
    spawn = multiprocessing.get_context("fork")
    writers = [spawn.Process(target=_write, args=(path, token)) for token in range(1, 9)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert path.read_bytes() == b"8"
    assert file.fence_of(path) == 8
