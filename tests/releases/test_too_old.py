"""Servers that are too old are refused at once, with the reason; nothing is written to them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from leasehold import Client, Unsupported
from leasehold._model import Severity
from leasehold_lab.servers import MariaDBServer, RedisServer, ZooKeeperServer
from leasehold_lab.servers.base import ROOTS
from releases.archive import fetch

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize(
    ("release", "kind", "words"),
    [
        ("redis-6.0", RedisServer, "is version 6.0.[0-9]+; locks need Redis 6.2 or later"),
        ("mariadb-10.5", MariaDBServer, "locks need MariaDB 10.6 and MySQL 8.0 or later"),
        ("zookeeper-3.4", ZooKeeperServer, "3.5.3"),
    ],
)
def test_it_is_refused(release: str, kind: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ROOTS, str(fetch(release)))
    with kind() as server:
        assert f" {release.partition('-')[2]}." in server.version
        with Client.from_url(server.url) as client:
            with pytest.raises(Unsupported, match=words):
                client.lock("a").acquire(timeout=5)
            try:
                found = [f"{each.found} {each.remedy}" for each in client.diagnose() if each.severity is Severity.ERROR]
            except Unsupported as error:
                found = [str(error)]
            assert re.search(words, found[0])
