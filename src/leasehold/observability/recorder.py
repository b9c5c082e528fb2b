"""Records who held what when, in a file of bounded size, for post-mortems; ``leasehold report`` draws it.

Example:
    ```python
    from leasehold import Client
    from leasehold.observability.recorder import Recorder

    with Recorder("locks.jsonl") as recorder, Client.from_url("memory:", observer=recorder) as locks:
        with locks.lock("stock:42"):
            pass
    ```

Each event is one line of JSON, written at once by the thread that acts: a process that is killed has recorded all that
it did. Several processes of one machine may share a file, on a local disk: a line is appended in one system call.

A file that has reached its size becomes ``locks.jsonl.1``, that one ``locks.jsonl.2``, and so on. The process that
notices it first renames the files, under a lock of the file; the others see by the size of their file that it is full,
and by its place that it has been renamed. Nobody waits for that lock: an acquire, a renewal or an event loop would wait
with it. A process that does not get it appends to the full file.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Self

from leasehold._runtimes.log import log
from leasehold.events import Acquired, Event, GaveUp, InDoubt, Lost, Queued, Released, Renewed
from leasehold.observability._one_at_a_time import OneAtATime

__all__ = ["MAX_BYTES", "Recorder", "read"]

MAX_BYTES = 10_000_000  # of one file
RECORDED: tuple[type[Event], ...] = (Queued, Acquired, GaveUp, InDoubt, Renewed, Released, Lost)
EVENTS: dict[str, type[Event]] = {kind.__name__: kind for kind in RECORDED}
FIELDS: dict[type[Event], tuple[str, ...]] = {
    kind: tuple(each.name for each in fields(kind) if each.name != "error") for kind in RECORDED
}

encode = json.JSONEncoder(separators=(",", ":")).encode


class Recorder:
    """Writes the events of clients to a file."""

    def __init__(self, path: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES, files: int = 5) -> None:
        """Open the file, to which is appended.

        Args:
            path: of the file; its folder must exist. It is readable for its owner alone.
            max_bytes: the size at which the next file begins.
            files: how many there are at most, with the present one. With 1, a line that another process writes just
                when a full file is removed goes with it.

        Raises:
            OSError: the file cannot be opened.
            ValueError: a number is out of its bounds.
        """
        if max_bytes < 1000 or files < 1:
            raise ValueError(f"max_bytes ({max_bytes}) must be at least 1000, and files ({files}) at least 1")
        self.path = Path(path).absolute()
        self._max_bytes, self._files = max_bytes, files
        self._file: int | None = self._open()
        self._failed = False  # whether the last line could not be written
        self._torn = False  # whether it was written in part
        self._untold: deque[OSError] = deque()  # failures that are not in the log yet
        self._take = OneAtATime(self._write, self._open_again)

    def wants(self, kind: type[Event]) -> bool:
        """Return whether events of this kind are recorded."""
        return kind in RECORDED

    def __call__(self, event: Event) -> None:
        """Record an event."""
        if isinstance(event, RECORDED):
            self._take(event)
            while self._untold:  # not while the mutex is held: a handler of the log may have one of its own
                with suppress(IndexError):  # another thread took it just now
                    log.warning("%s cannot be written; events are missing there: %s", self.path, self._untold.popleft())

    def close(self) -> None:
        """Close the file; later events are not recorded."""
        with self._take.mutex:
            file, self._file = self._file, None
            if file is not None:
                os.close(file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- one at a time -----------------------------------------------------------------------------------------

    def _open(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _write(self, event: Event) -> None:
        if self._file is None:
            return
        line = _line(event)
        try:
            if os.fstat(self._file).st_size >= self._max_bytes:
                self._next_file()
            if self._torn:
                line = b"\n" + line
            if (written := os.write(self._file, line)) < len(line):
                self._torn = self._torn or written > 0
                raise OSError(errno.ENOSPC, "the last line was cut off")
            self._failed = self._torn = False
        except OSError as error:  # a full disk must not keep a caller from a lock
            if not self._failed:
                self._untold.append(error)
            self._failed = True

    def _open_again(self) -> None:
        """Open the file in a forked child: all processes that share a descriptor share its lock, too."""
        if self._file is not None:
            with suppress(OSError):  # then the inherited descriptor still takes lines
                inherited, self._file = self._file, self._open()
                os.close(inherited)

    def _next_file(self) -> None:
        """Make way for the next file, unless another process has done so; open the one that is there."""
        full = self._file
        if full is None:
            return
        try:
            fcntl.flock(full, fcntl.LOCK_EX | fcntl.LOCK_NB)  # of the file, wherever it is
            if _is_at(full, self.path):
                for number in range(self._files - 1, 0, -1):
                    older = self._numbered(number - 1)
                    if older.exists():
                        older.replace(self._numbered(number))
                if self._files == 1:
                    self.path.unlink(missing_ok=True)
            self._file = self._open()
        except BlockingIOError:
            pass  # another process renames it, and may be stopped there: it takes this line, too
        finally:
            fcntl.flock(full, fcntl.LOCK_UN)  # a close does not unlock what a forked child may have open, too
            if self._file is not full:  # after a failure it stays open: its number would soon be another file's
                os.close(full)

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}") if number else self.path


def _line(event: Event) -> bytes:
    facts: dict[str, object] = {"event": type(event).__name__}
    for name in FIELDS[type(event)]:
        facts[name] = getattr(event, name)
    if event.error is not None:
        facts["error"] = str(event.error)
    return encode(facts).encode() + b"\n"


def _is_at(file: int, path: Path) -> bool:
    """Return whether an open file is still at this path."""
    try:
        there, here = path.stat(), os.fstat(file)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


def read(lines: Iterable[str]) -> Iterator[Event]:
    """Yield the events of a record's lines. A line that is none, as one that was cut off, is left out."""
    for line in lines:
        try:
            facts = json.loads(line)
            kind = EVENTS[facts.pop("event")]
            yield kind(**{name: facts[name] for name in FIELDS[kind] if name in facts})
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
