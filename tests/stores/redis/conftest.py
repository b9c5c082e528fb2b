"""Servers of its own for each file: one as it is, and one with users and passwords."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from refused_clients import PASSWORD

from leasehold_lab.servers import RedisServer


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


@pytest.fixture(scope="module")
def secured() -> Iterator[RedisServer]:
    with RedisServer(password=PASSWORD, users=["app on >sesame ~* &* +@all"], unix_socket=True) as server:
        yield server
