"""A guard for a file: it is replaced as a whole, and only by a holder whose token is not below the last one's.

The fence is in the file ``NAME.fence`` in the same folder, which is locked during a write (``flock``; so all writers
are on one host, or on a file system whose locks work between hosts). The fence is raised, on the disk, before the file
is replaced: so after a crash in between, the older holder is refused, too.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from leasehold.guards import check_fence, check_token


def write(path: str | os.PathLike[str], data: bytes, *, token: int) -> None:
    """Replace the file by ``data``, in one step for its readers. Its permissions stay as they were.

    Where the path is a symbolic link, its target is replaced, and has the fence: a link that is moved has another one.

    Raises:
        Stale: a holder with a higher token has written it.
        OSError: as for any file.
    """
    check_token(token)
    target = _target(path)
    with _locked_fence(target) as descriptor:
        check_fence(str(target), int(os.pread(descriptor, 32, 0) or b"0"), token)
        os.pwrite(descriptor, b"%019d\n" % token, 0)
        os.fsync(descriptor)
        _replace(target, data)


def fence_of(path: str | os.PathLike[str]) -> int:
    """Return the highest token that has written the file; 0 if none has."""
    try:
        return int(_fence_path(_target(path)).read_bytes() or b"0")
    except FileNotFoundError:
        return 0


def _target(path: str | os.PathLike[str]) -> Path:
    return Path(os.path.realpath(path))  # writers by the link and by its target have one fence


@contextmanager
def _locked_fence(target: Path) -> Generator[int]:
    import fcntl

    descriptor = os.open(_fence_path(target), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _fence_path(target: Path) -> Path:
    return target.with_name(target.name + ".fence")


def _replace(target: Path, data: bytes) -> None:
    fresh = target.with_name(f".{target.name}.{os.getpid()}.new")
    before = target.stat().st_mode if target.exists() else None
    try:
        with open(fresh, "wb", opener=partial(os.open, mode=0o666 if before is None else 0o600)) as file:
            if before is not None:  # no user may read it who could not before
                os.fchmod(file.fileno(), stat.S_IMODE(before))
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, target)
    finally:
        fresh.unlink(missing_ok=True)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
