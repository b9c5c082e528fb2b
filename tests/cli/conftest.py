"""Stores for the tests of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from shells import Shell


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path}/locks.db"


@pytest.fixture(params=["sqlite", "redis"])
def shell(request: pytest.FixtureRequest, tmp_path: Path, namespace: str) -> Iterator[Shell]:
    """A shell for each store that several processes can share."""
    fixture = {"sqlite": "sqlite_url", "redis": "redis_server"}[request.param]
    store = request.getfixturevalue(fixture)
    shell = Shell(store if isinstance(store, str) else store.url, tmp_path, namespace)
    yield shell
    shell.close()


@pytest.fixture
def sqlite_shell(tmp_path: Path, sqlite_url: str) -> Iterator[Shell]:
    shell = Shell(sqlite_url, tmp_path)
    yield shell
    shell.close()
