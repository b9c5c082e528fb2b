"""The flavors in which a test runs: with the blocking client, and with that of asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from leasehold._runtimes.aio import AsyncioRuntime
from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold_lab.runtimes.harnesses import AsyncioHarness, BlockingHarness

BLOCKING, ASYNCIO = FLAVORS = BlockingHarness(), AsyncioHarness()

both = pytest.mark.parametrize("harness", FLAVORS, ids=str)
"""Runs a test in each of them; by day in one, where the table of tiers says so."""


def on_runtimes(case: Callable[[Any], Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test of a coroutine function that takes the class of a runtime; it runs in both flavors."""

    @pytest.mark.parametrize(("runtime", "run"), [(BlockingRuntime, finish), (AsyncioRuntime, asyncio.run)])
    def test(runtime: Any, run: Callable[[Any], Any]) -> None:
        run(case(runtime))

    test.__name__, test.__doc__, test.__module__ = case.__name__, case.__doc__, case.__module__
    return test
