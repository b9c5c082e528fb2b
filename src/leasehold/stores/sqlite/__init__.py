"""SQLite: locks between the processes of one host, with no server and no set-up."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from leasehold._runtimes.base import Runtime
from leasehold._url import StoreURL
from leasehold.stores.sqlite.machine import Machine
from leasehold.stores.sqlite.store import SQLiteStore

__all__ = ["SQLite", "SQLiteStore", "from_url"]

FLAGS = {**dict.fromkeys(("1", "true", "yes", "on"), True), **dict.fromkeys(("0", "false", "no", "off"), False)}


@dataclass(frozen=True, slots=True)
class SQLite:
    """Opens the file at ``path``, an absolute path.

    Attributes:
        path: the file; the first use that writes creates it, for its owner only. Its folder must exist, unless it is
            the default one.
        allow_network: use it on a network file system, too; correct only if one machine alone does.
        machine: what the kernel reports of boot, clock and processes.
    """

    path: Path
    allow_network: bool = False
    machine: Machine = field(default_factory=Machine)

    def open(self, runtime: Runtime, namespace: str) -> SQLiteStore:
        """Open the store; the file is opened at first use."""
        return SQLiteStore(runtime, namespace, self.path, self.machine, allow_network=self.allow_network)


def from_url(url: StoreURL) -> SQLite:
    """Read ``sqlite:/absolute/path``, ``sqlite:relative/path`` or ``sqlite:~/path``, with ``?allow_network=1``.

    A relative path is resolved against the current working directory.

    Raises:
        ValueError: it names no file, or has a host, a user or an unknown option.
    """
    url.refuse_options(("allow_network",))
    if url.hosts or url.username is not None or url.password is not None:
        raise ValueError("a sqlite URL has no host; write sqlite:/path/locks.db or sqlite:///path/locks.db")
    if not url.path:
        from leasehold.stores.registry import default_path

        remedy = f"write sqlite:/path/locks.db, or no URL at all for {default_path()}"
        raise ValueError(f"the sqlite URL names no file; {remedy}")
    if url.path == ":memory:":
        raise ValueError("sqlite::memory: is private to one connection; for locks inside one process write memory:")
    if "\0" in url.path or url.path.endswith(("/", "/.", "/..")) or url.path in (".", ".."):
        raise ValueError(f"the sqlite URL names no file: {url.path!r}; write for example sqlite:/path/locks.db")
    path = os.path.expanduser(url.path)
    if path.startswith("~"):  # each working directory would have a file of its own
        raise ValueError(f"there is no home directory for {path!r}; write an absolute path, or set HOME")
    return SQLite(Path(os.path.abspath(path)), _flag(url.options.get("allow_network", "0")))


def _flag(text: str) -> bool:
    if text.lower() not in FLAGS:
        raise ValueError(f"allow_network is 1 or 0, not {text!r}")
    return FLAGS[text.lower()]
