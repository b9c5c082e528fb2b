"""A cluster whose slots migrate."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leasehold_lab.servers import RedisCluster


@pytest.fixture(scope="module")
def cluster(outlive: set[int]) -> Iterator[RedisCluster]:
    """Three nodes whose slots migrate to and fro; no node is killed."""
    with RedisCluster(replicas=0, full_coverage=False) as group:
        outlive.update(node.pid for node in group.nodes)
        yield group
