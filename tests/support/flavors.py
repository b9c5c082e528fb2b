"""The flavors in which a test runs: with the blocking client, and with that of asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from itertools import product
from typing import Any

import pytest

from leasehold._runtimes.aio import AsyncioRuntime
from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold_lab.runtimes.harnesses import AsyncioHarness, BlockingHarness, Harness

BLOCKING, ASYNCIO = FLAVORS = BlockingHarness(), AsyncioHarness()

both = pytest.mark.parametrize("harness", FLAVORS, ids=str)
"""Runs a test in each of them."""


def by_day(harness: Harness) -> pytest.MarkDecorator:
    """Run a test in this flavor by day, and in the other by night."""
    other = ASYNCIO if harness is BLOCKING else BLOCKING
    return pytest.mark.parametrize("harness", [harness, pytest.param(other, marks=pytest.mark.nightly)], ids=str)


def in_turn(*values: Iterable[str]) -> list[Any]:
    """Return all combinations, each with a harness: by day in one flavor, in turn, and by night in the other, too."""
    parameters = list[Any]()
    for number, each in enumerate(product(*values)):
        for harness in FLAVORS:
            marks = () if harness is FLAVORS[number % 2] else (pytest.mark.nightly,)
            parameters.append(pytest.param(*each, harness, id="-".join([*each, harness.name]), marks=marks))
    return parameters


def on_runtimes(case: Callable[[Any], Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test of a coroutine function that takes the class of a runtime; it runs in both flavors."""

    @pytest.mark.parametrize(("runtime", "run"), [(BlockingRuntime, finish), (AsyncioRuntime, asyncio.run)])
    def test(runtime: Any, run: Callable[[Any], Any]) -> None:
        run(case(runtime))

    test.__name__, test.__doc__, test.__module__ = case.__name__, case.__doc__, case.__module__
    return test
