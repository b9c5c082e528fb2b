"""Fixtures of the tests of the etcd store."""

from __future__ import annotations

import pytest

from leasehold_lab.proxy.proxy import FaultProxy


@pytest.fixture
def proxy(etcd_server):
    with FaultProxy(etcd_server.port) as proxy:
        yield proxy
