"""The fixture `deployment`."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deployments import SYSTEMS, Deployment


@pytest.fixture
def deployment(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deployment]:
    """The store that a test names by its parameter ``name``: one of `deployments.SYSTEMS`."""
    system = SYSTEMS[name]
    if not system.fixture:
        with sqlite3.connect(tmp_path / "locks", isolation_level=None, check_same_thread=False) as file:
            yield Deployment(
                f"sqlite:{tmp_path / 'locks'}",
                lambda: file.execute("BEGIN EXCLUSIVE"),
                lambda: file.execute("ROLLBACK"),
            )
        file.close()
        return
    if system.fixture == "mariadb_server":
        request.getfixturevalue("mariadb_url")  # with the tables made
    server: Any = request.getfixturevalue(system.fixture)
    servers = next((getattr(server, each) for each in ("nodes", "servers") if hasattr(server, each)), [server])

    def all_of(verb: str) -> Callable[[], None]:
        return lambda: [getattr(each, verb)() for each in servers] and None

    yield Deployment(server.url + system.options, all_of("pause"), all_of("resume"))
