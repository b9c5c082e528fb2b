"""Files and folders that do not exist: what reads makes nothing, and a folder with a mistyped name is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from leasehold import Client, StoreRefused
from leasehold._model import Severity
from leasehold.cli import main

READS: dict[str, Callable[[Client], object]] = {
    "holds": lambda locks: locks.holds() == [],
    "inspect": lambda locks: locks.inspect("x") is None,
    "locked": lambda locks: not locks.lock("x").locked(),
    "available": lambda locks: locks.semaphore("x", 3).available() == 3,
    "value": lambda locks: locks.versioned("x").get().value is None,
    "leader": lambda locks: locks.election("x").leader() is None,
    "latch": lambda locks: locks.latch("x", 2).wait(timeout=0) is False,
    "diagnose": lambda locks: all(one.severity < Severity.WARNING for one in locks.diagnose()),
}


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("read", READS)
def test_what_reads_makes_no_file(tmp_path: Path, read: str) -> None:
    with Client.from_url(f"sqlite:{tmp_path}/locks.db") as locks:
        assert READS[read](locks)
        assert files(tmp_path) == []
        with locks.lock("y", timeout=0):  # and the client can be used as before
            assert len(locks.holds()) == 1


@pytest.mark.parametrize("read", READS)
def test_what_reads_makes_no_state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: str) -> None:
    monkeypatch.delenv("LEASEHOLD_URL", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with Client.from_url() as locks:
        assert READS[read](locks)
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "code", "printed"),
    [(["ls"], 0, ""), (["ls", "--json"], 0, "[]\n"), (["show", "x"], 1, ""), (["doctor"], 0, "does not exist")],
    ids=["ls", "ls-json", "show", "doctor"],
)
def test_commands_that_read_make_no_file(tmp_path: Path, arguments: list[str], code: int, printed: str) -> None:
    result = CliRunner().invoke(main, arguments, env={"LEASEHOLD_URL": f"sqlite:{tmp_path}/locks.db"})
    assert result.exit_code == code
    assert printed in result.stdout
    assert files(tmp_path) == []


def test_a_file_that_was_deleted_is_not_made_again_by_a_reader(path: Path, locks: Client) -> None:
    with Client.from_url(f"sqlite:{path}") as others:
        with locks.lock("x"):
            assert len(others.holds()) == 1
        for file in path.parent.glob("locks.db*"):
            file.unlink()
        assert others.holds() == []
        assert files(path.parent) == []


@pytest.mark.parametrize("call", [*READS, "acquire"])
def test_a_missing_folder_is_refused(tmp_path: Path, call: str) -> None:
    path = tmp_path / "mistyped" / "dir" / "locks.db"
    with Client.from_url(f"sqlite:{path}") as locks, pytest.raises(StoreRefused) as caught:
        locks.lock("x").acquire(timeout=5) if call == "acquire" else READS[call](locks)
    assert f"the lock file {path}" in str(caught.value)
    assert f"the folder {path.parent} does not exist; make that folder, or correct the path" in str(caught.value)
    assert caught.value.lasting
    assert not caught.value.unknown
    assert files(tmp_path) == []


def test_doctor_of_a_folder_in_which_no_file_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    with Client.from_url(f"sqlite:{tmp_path}/locks.db") as locks:
        (found,) = (one for one in locks.diagnose() if one.severity is Severity.ERROR)
    assert (found.subject, found.found) == ("sqlite file", f"{tmp_path}/locks.db")
