"""The flavors in which a test runs: with the blocking client, and with that of asyncio."""

from __future__ import annotations

import pytest

from leasehold_lab.runtimes.harnesses import AsyncioHarness, BlockingHarness, Harness

BLOCKING, ASYNCIO = FLAVORS = BlockingHarness(), AsyncioHarness()

both = pytest.mark.parametrize("harness", FLAVORS, ids=str)
"""Runs a test in each of them."""


def by_day(harness: Harness) -> pytest.MarkDecorator:
    """Run a test in this flavor by day, and in the other by night."""
    other = ASYNCIO if harness is BLOCKING else BLOCKING
    return pytest.mark.parametrize("harness", [harness, pytest.param(other, marks=pytest.mark.nightly)], ids=str)
