"""The check of a failover's tokens finds an order that neighbours alone do not show."""

from __future__ import annotations

import pytest

from leasehold_lab.runtimes.harnesses import BlockingHarness
from support.stores.failover_load import Holding, Load


def load_of(*times: tuple[float, float]) -> Load:
    """Return a load whose holds, in order of their tokens, were asked for and granted at these times."""
    load = Load(BlockingHarness(), "memory:", "default", ["x"])
    load.holdings = [Holding("x", token, asked, got, ended=got) for token, (asked, got) in enumerate(times, start=1)]
    return load


def test_tokens_in_the_order_of_the_grants_pass() -> None:
    load_of((1, 2), (1, 3), (3, 4)).check()


def test_a_token_that_is_lower_than_one_asked_for_after_its_grant_is_found() -> None:
    with pytest.raises(AssertionError, match="token 2 was given out before 1"):
        load_of((10, 11), (1, 2)).check()


def test_the_same_is_found_behind_a_slow_request() -> None:
    with pytest.raises(AssertionError, match="token 3 was given out before 1"):
        load_of((10, 11), (1, 12), (2, 3)).check()
