"""The flavors in which a test runs: with the blocking client, and with that of asyncio."""

from __future__ import annotations

import pytest

from leasehold_lab.runtimes.case_runtimes import AsyncioWorld, BlockingWorld, World

BLOCKING, ASYNCIO = FLAVORS = BlockingWorld(), AsyncioWorld()

both = pytest.mark.parametrize("world", FLAVORS, ids=str)
"""Runs a test in each of them."""


def by_day(world: World) -> pytest.MarkDecorator:
    """Run a test in this flavor by day, and in the other by night."""
    other = ASYNCIO if world is BLOCKING else BLOCKING
    return pytest.mark.parametrize("world", [world, pytest.param(other, marks=pytest.mark.nightly)], ids=str)
