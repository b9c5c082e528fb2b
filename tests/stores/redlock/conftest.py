"""Nodes that a test may break."""

from __future__ import annotations

import pytest

from leasehold_lab.servers import RedlockNodes


@pytest.fixture
def nodes():
    """Five nodes that a test may break."""
    with RedlockNodes(5) as group:
        yield group
        for node in group.nodes:
            if node.running:
                node.resume()
