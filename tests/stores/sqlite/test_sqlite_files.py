"""Files and file systems that the SQLite store refuses, and those that fail while it is used."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlite_peers import Peer, boottime, client_on, fake_proc, linux, raw, root, run_python

from leasehold import Client, LeaseLost, StoreUnavailable, Unsupported
from leasehold._model import Severity
from leasehold.stores.sqlite.database import LAYOUT

MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:40 / {point} rw,relatime shared:1 - {kind} server:/export rw
"""


@linux
@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "afs", "lustre", "virtiofs"]
)
def test_network_file_systems_are_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a share" / "sub" / "locks.db"
    point = str(path.parent.parent).replace(" ", r"\040")
    proc = fake_proc(tmp_path / "p", mounts=MOUNTS.format(point=point, kind=kind))
    with client_on(path, proc) as locks, pytest.raises(Unsupported, match=rf"{kind}.*allow_network=1"):
        locks.lock("x").acquire()
    assert not path.parent.exists()
    path.parent.mkdir(parents=True)
    with client_on(path, proc, allow_network=True) as locks:
        with locks.lock("x", timeout=0):
            pass
        assert any(one.severity is Severity.WARNING and kind in one.found for one in locks.diagnose())


@linux
def test_local_file_systems_are_accepted(path: Path, tmp_path: Path) -> None:
    proc = fake_proc(tmp_path / "p", mounts=MOUNTS.format(point=path.parent.parent / "elsewhere", kind="nfs4"))
    with client_on(path, proc) as locks, locks.lock("x", timeout=0):
        pass


@linux
def test_single_file_mount_is_refused(path: Path, tmp_path: Path) -> None:
    path.touch()
    proc = fake_proc(tmp_path / "p", mounts=MOUNTS.format(point=path, kind="ext4"))
    with client_on(path, proc) as locks, pytest.raises(Unsupported, match="mount its folder"):
        locks.lock("x").acquire()


def refused(path: Path) -> BaseException:
    began = boottime()
    with (
        Client.from_url(f"sqlite:{path}") as locks,
        pytest.raises((StoreUnavailable, Unsupported)) as caught,
    ):
        locks.lock("x").acquire()
    assert boottime() - began < 1.0
    assert not getattr(caught.value, "unknown", False)
    return caught.value


def test_folder_given(tmp_path: Path) -> None:
    assert f"name a file in it, for example sqlite:{tmp_path}/locks.db" in str(refused(tmp_path))


def test_device_given() -> None:
    assert "not a regular file" in str(refused(Path("/dev/null")))


def test_not_a_database(path: Path) -> None:
    path.write_bytes(b"keep this text\n" * 100)
    assert "is not a SQLite database" in str(refused(path))
    assert path.read_bytes() == b"keep this text\n" * 100


def test_database_of_another_application(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE t (x)")
        db.commit()
    before = path.read_bytes()
    assert "of another application" in str(refused(path))
    assert path.read_bytes() == before


def test_newer_layout(path: Path, locks: Client) -> None:
    with locks.lock("x"):
        pass
    raw(path, f"PRAGMA user_version={LAYOUT + 1}")
    assert "upgrade it" in str(refused(path))


def test_older_layout(path: Path, locks: Client) -> None:
    with locks.lock("x"):
        pass
    raw(path, "PRAGMA user_version=1")
    assert "remove it" in str(refused(path))


def test_empty_file_is_taken(path: Path) -> None:
    path.touch()
    with Client.from_url(f"sqlite:{path}") as locks, locks.lock("x", timeout=0):
        pass


def test_old_sqlite(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasehold.stores.sqlite.database.OLDEST_SQLITE", (99, 0, 0))
    assert "need SQLite 99.0.0" in str(refused(path))


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "cannot be made or reached" in str(refused(tmp_path / "file" / "locks.db"))
    assert "cannot be made or reached" in str(refused(Path("/proc/nowhere/locks.db")))


@pytest.mark.skipif(os.name != "posix", reason="permissions")
@pytest.mark.parametrize("what", ["file", "folder", "closed"])
def test_no_permission(tmp_path: Path, what: str) -> None:
    """As a user who may not write, or not even enter."""
    folder = tmp_path / "theirs"
    path = folder / "locks.db"
    folder.mkdir()
    with Client.from_url(f"sqlite:{path}") as locks, locks.lock("x"):
        pass
    path.chmod(0o444 if what == "file" else 0o666)
    folder.chmod({"file": 0o777, "folder": 0o555, "closed": 0o700}[what])
    code = """
        import os, sys
        from leasehold import Client, StoreUnavailable
        import leasehold.stores.sqlite, encodings.idna  # while this user may read them
        if os.geteuid() == 0:
            os.setgroups([]); os.setgid(65534); os.setuid(65534)
        with Client.from_url("sqlite:" + sys.argv[1]) as locks:
            try:
                locks.lock("x").acquire()
            except StoreUnavailable as error:
                assert not error.unknown
                print(error)
        """
    for parent in tmp_path.parents:
        if os.geteuid() == 0 and parent.owner() == "root" and len(parent.parts) > 2:
            parent.chmod(parent.stat().st_mode | 0o011)
    tmp_path.chmod(0o755)
    if what == "closed" and os.geteuid() != 0:
        folder.chmod(0o000)
    try:
        said = run_python(code, path)
    finally:
        folder.chmod(0o755)
    assert str(path) in said
    assert any(words in said for words in ("cannot be written", "Permission denied", "must be writable"))


@root
def test_disk_full(tmp_path: Path) -> None:
    code = """
        import os, sys
        from pathlib import Path
        from leasehold import Client, StoreUnavailable
        folder = Path(sys.argv[1])
        with Client.from_url(f"sqlite:{folder}/locks.db") as locks:
            first = locks.lock("first").acquire()
            with open(folder / "filler", "wb", buffering=0) as filler:
                try:
                    while True: filler.write(bytes(4096))
                except OSError: pass
            failed = 0
            for number in range(3000):
                try:
                    locks.lock(f"n{number}", meta="x" * 1000).acquire()
                except StoreUnavailable as error:
                    assert not error.unknown and "full" in str(error), error
                    failed += 1
                    if failed == 3: break
            assert failed == 3
            first.raise_if_lost()
            names = len(locks.holds())
            os.unlink(folder / "filler")
            assert first.release() is True
            assert len(locks.holds()) == names - 1 == number - 2
            with locks.lock("after"): pass
        print("ok")
        """
    mount = f'mount -t tmpfs -o size=1m none {tmp_path} && exec "$0" "$@"'
    assert run_python(code, tmp_path, before=("unshare", "--mount", "sh", "-c", mount)).strip() == "ok"


@root
def test_read_only_file_system(tmp_path: Path) -> None:
    code = """
        import sys
        from leasehold import Client, StoreUnavailable
        for name in ("locks.db", "new.db"):
            with Client.from_url(f"sqlite:{sys.argv[1]}/{name}") as locks:
                for use in (locks.lock("x").acquire, locks.ping):
                    try:
                        use()
                    except StoreUnavailable as error:
                        print(error)
        """
    with Client.from_url(f"sqlite:{tmp_path}/locks.db") as locks, locks.lock("x"):
        pass
    mount = f'mount --bind {tmp_path} {tmp_path} && mount -o remount,ro,bind {tmp_path} && exec "$0" "$@"'
    said = run_python(code, tmp_path, before=("unshare", "--mount", "sh", "-c", mount)).splitlines()
    assert len(said) == 4
    assert said[0] == said[1]
    assert "Read-only file system" in said[2]
    assert said[2] == said[3]


def test_ping_makes_the_file(path: Path) -> None:
    with Client.from_url(f"sqlite:{path}") as locks:
        locks.ping()
        assert path.exists()
        path.unlink()
        locks.ping()


def test_deleted_file_is_noticed(path: Path) -> None:
    with Client.from_url(f"sqlite:{path}") as locks, Client.from_url(f"sqlite:{path}") as others:
        hold = locks.lock("x").acquire()
        assert hold is not None
        for file in path.parent.glob("locks.db*"):
            file.unlink()
        other = others.lock("x").acquire(timeout=0)
        assert other is not None
        assert other.token > hold.token
        with pytest.raises(LeaseLost):
            hold.renew()
        other.raise_if_lost()


@pytest.mark.parametrize("gone", [["-shm"], ["-shm", "-wal"]])
def test_deleted_companions_keep_mutual_exclusion(
    path: Path, locks: Client, peers: Callable[..., Peer], gone: list[str]
) -> None:
    """Without the same index of the log, who was there before and who comes after do not see each other's locks."""
    with locks.lock("x"):
        pass
    for suffix in gone:
        path.with_name(f"locks.db{suffix}").unlink()
    later = peers()
    assert later.ask("take('y', lease=60)") is not None
    assert locks.lock("y").acquire(timeout=0) is None
    assert locks.lock("z").acquire(timeout=0) is not None
    assert later.ask("take('z', timeout=0)") is None
    assert raw(path, "PRAGMA integrity_check") == [["ok"]]


def test_tokens_after_an_old_copy_was_restored(path: Path, tmp_path: Path) -> None:
    """As after a loss of power that took back commits, or a restore: the clock keeps tokens rising."""
    with Client.from_url(f"sqlite:{path}") as locks, locks.lock("x"):
        shutil.copytree(path.parent, tmp_path.parent / f"{tmp_path.name}-copy")
    with Client.from_url(f"sqlite:{path}") as locks, locks.lock("x") as hold:
        last = hold.token
    for file in (tmp_path.parent / f"{tmp_path.name}-copy").iterdir():
        shutil.copy(file, path.parent / file.name)
    with Client.from_url(f"sqlite:{path}") as locks:
        with locks.lock("y", timeout=0) as hold:
            assert hold.token > last
        info = locks.inspect("x")  # the copy has it held; its holder is this process, so the lease decides
        assert info is not None
        assert locks.force_release("x", info.token)
        with locks.lock("x", timeout=1) as hold:
            assert hold.token > last
