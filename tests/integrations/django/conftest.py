"""A database of its own for each test, on servers that all share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sites import Site, made

SERVERS = {"postgresql": "postgres_server", "mysql": "mariadb_server", "sqlite": ""}


@pytest.fixture
def site(system: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    server: Any = request.getfixturevalue(SERVERS[system]) if SERVERS[system] else None
    with made(system, server, tmp_path) as found:
        yield found
