"""The file and its file system: created for its owner only, and refused where file locks are unreliable.

SQLite in WAL mode depends on two things that only the kernel of one host gives: file locks, and memory shared through a
file next to the database. Network and most user-space file systems give neither, without an error.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from leasehold.errors import StoreRefused, StoreUnavailable, Unsupported

REMOTE = frozenset(
    {
        *("9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "cvmfs", "davfs", "fhgfs", "fuse", "gfs", "gfs2"),
        *("glusterfs", "gpfs", "lustre", "mfs", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "prl_fs"),
        *("pvfs2", "smb3", "smbfs", "vboxsf", "virtiofs", "vmhgfs"),
    }
)
"""File system types that are shared with other machines, or served by a program; ``fuse.*`` too."""

Identity = tuple[int, int]
"""Device and inode of the file at a path."""


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of the mount table."""

    point: str
    kind: str

    @property
    def remote(self) -> bool:
        """Whether other machines share it, or a program serves it."""
        return self.kind in REMOTE or self.kind.startswith("fuse.")


class NoFile(Exception):
    """There is no file, and none was to be made: so no lock is held."""


def prepare(path: Path, mounts: str, *, allow_network: bool, make: bool) -> Identity:
    """Check the file system, ``make`` the file if it is missing, and return its identity.

    Raises:
        NoFile: it is missing, and must not be made.
        Unsupported: locks would not work there.
        StoreUnavailable: it cannot be created or reached.
    """
    try:
        _check_mount(path, mounts, allow_network=allow_network)
        _check_folder(path, make=make)
        if make:
            _make_file(path)
        elif not path.exists():
            raise NoFile
        found = os.stat(path)
    except StoreRefused:
        raise
    except OSError as error:
        what = f"{error.strerror}: {error.filename or path}"
        raise StoreUnavailable(f"the lock file {path} cannot be made or reached ({what})") from error
    if stat.S_ISDIR(found.st_mode):
        raise Unsupported(f"{path} is a folder; name a file in it, for example sqlite:{path}/locks.db")
    if not stat.S_ISREG(found.st_mode):
        raise Unsupported(f"{path} is not a regular file; name another path")
    return found.st_dev, found.st_ino


class Files(NamedTuple):
    """The file at a path and its companions, as they are now.

    Attributes:
        which: the file, its write-ahead log and the log's index; None for each that is not there.
        log: bytes of the log.
        touched: when the log's index was last marked, in seconds of the wall clock. It is written through shared
            memory, so its modification time changes otherwise by a process's first write alone. That of the file
            changes at each checkpoint.
    """

    which: tuple[Identity | None, ...]
    log: int
    touched: float


def companions(path: Path) -> tuple[str, str]:
    """Return the paths of the two files that SQLite keeps next to it: its write-ahead log, and the log's index."""
    real = os.path.realpath(path)
    return f"{real}-wal", f"{real}-shm"


def files(path: str, alongside: tuple[str, str]) -> Files:
    """Return the state of a file and its companions."""
    main, log, index = map(_stat, (path, *alongside))
    which = (
        None if main is None else (main.st_dev, main.st_ino),
        None if log is None else (log.st_dev, log.st_ino),
        None if index is None else (index.st_dev, index.st_ino),
    )
    return Files(which, 0 if log is None else log.st_size, 0.0 if index is None else index.st_mtime)


def mark(path: Path) -> None:
    """Set the modification time of the log's index, which shows a writer that another process waits to write."""
    with suppress(OSError):  # the mark is optional
        os.utime(companions(path)[1])


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


def mount_of(path: Path, mounts: str) -> Mount | None:
    """Return the mount on which ``path`` lies: the one with the longest mount point above it, the last of equals."""
    best: Mount | None = None
    for line in mounts.splitlines():
        fields = line.split(" ")
        if "-" not in fields or len(fields) < fields.index("-") + 2:
            continue
        mount = Mount(_unescape(fields[4]), fields[fields.index("-") + 1])
        if path.is_relative_to(mount.point) and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def _check_mount(path: Path, mounts: str, *, allow_network: bool) -> None:
    real = Path(os.path.realpath(path))
    mount = mount_of(real, mounts)
    if mount is None:
        return
    if mount.point == str(real):
        raise Unsupported(
            f"{path} is mounted as a single file, so its companions -wal and -shm would not be shared; mount its folder"
        )
    if mount.remote and not allow_network:
        raise Unsupported(
            f"{path} lies on {mount.point}, a file system of type {mount.kind}: file locks and shared memory do not "
            "work there between machines. Use a local path, or a server such as redis:. If one machine alone uses "
            "the file, add ?allow_network=1"
        )


def _check_folder(path: Path, *, make: bool) -> None:
    """Refuse a folder that does not exist, since its name may be mistyped. The default one is made."""
    from leasehold.stores.registry import default_path

    missing = [folder for folder in path.parents if not folder.exists()]
    if missing and path != Path(os.path.abspath(default_path())):
        raise StoreRefused(
            f"the lock file {path} cannot be made or reached: the folder {path.parent} does not exist; make that "
            "folder, or correct the path in the URL"
        )
    for folder in reversed(missing) if make else ():
        folder.mkdir(mode=0o700, exist_ok=True)


def _make_file(path: Path) -> None:
    real = os.path.realpath(path)
    if os.path.exists(real):
        return
    try:
        # Not open(): closing any descriptor of a file drops all locks that this process has on it (POSIX), and another
        # store in this process may have opened the file just now.
        os.mknod(real, 0o600 | stat.S_IFREG)
    except FileExistsError:
        pass
    except PermissionError:
        if os.uname().sysname == "Linux":
            raise
        os.close(os.open(real, os.O_CREAT | os.O_RDWR, 0o600))  # elsewhere mknod is for the superuser


def _unescape(text: str) -> str:
    for code, char in ((r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", "\\")):
        text = text.replace(code, char)
    return text
