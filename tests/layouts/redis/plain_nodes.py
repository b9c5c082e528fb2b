"""Three nodes of Redlock with plain keys, and what another program does there."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager

import pytest

from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.servers import RedlockNodes
from support.patience import until_in

OURS = ("ours", "ours-asyncio")

THEIRS = "redlock-py"

POLLED = 0.15 + 0.3
"""Seconds for a release of theirs without a message, a round of votes, and a busy machine."""

OTHER = "0123456789abcdef"
"""The value of another program."""

STEPS = 60
"""More steps of the loop than an acquire and a release take."""


@pytest.fixture(scope="module")
def nodes(outlive):
    with RedlockNodes(3) as group:
        for node in group.nodes:
            outlive.add(node.pid)
        yield group


@pytest.fixture
def url(nodes):
    return f"{nodes.url}?layout=plain"


@pytest.fixture
def key(namespace):
    """The key of the lock ``x``."""
    return f"{namespace}:x"


@pytest.fixture
def breakable():
    """Nodes that a test may break."""
    with RedlockNodes(3) as group:
        yield group


@contextmanager
def proxies(nodes, count):
    """Put a proxy before the first ``count`` nodes; yield them, and the URL of all."""
    with ExitStack() as stack:
        before = [stack.enter_context(FaultProxy(node.port)) for node in nodes.nodes[:count]]
        ports = [proxy.port for proxy in before] + [node.port for node in nodes.nodes[count:]]
        yield before, "redlock://" + ",".join(f"127.0.0.1:{port}" for port in ports) + "?layout=plain"


def values(nodes, key):
    return [node.command("GET", key) for node in nodes.nodes]


def take(node, key, value=OTHER, ms=10_000):
    """Take the key of a node as another program does."""
    assert node.command("SET", key, value, "NX", "PX", ms) == "OK"


async def gone(harness, nodes, key):
    """Wait until no node has the key; no call waits for a give-back."""
    await until_in(harness, lambda: values(nodes, key) == [None] * 3, 3.0)
