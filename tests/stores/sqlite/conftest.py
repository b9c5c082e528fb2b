"""A file, a client of it, and other processes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlite_peers import Peer

from leasehold import Client


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "locks.db"


@pytest.fixture
def peers(path: Path) -> Iterator[Callable[..., Peer]]:
    with contextlib.ExitStack() as stack:

        def make(proc: str = "/proc") -> Peer:
            peer = Peer(path, proc)
            stack.callback(peer.close)
            return peer

        yield make


@pytest.fixture
def locks(path: Path) -> Iterator[Client]:
    with Client.from_url(f"sqlite:{path}") as client:
        yield client
