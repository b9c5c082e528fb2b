"""Cells: every store accepts and refuses the same writes as the memory store, however large the fences are.

Numbers in scripts of Redis are exact to 53 bits only, those of SQL end at 63. Fences are drawn near such bounds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leasehold._model import Cell, Change
from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.store_api import Store
from leasehold.stores import registry
from leasehold.stores._common.cells import EMPTY, apply_change

T = TypeVar("T")

STORES = {
    "memory": "",
    "sqlite": "",
    "redis": "redis_server",
    "cluster": "redis_cluster",
    "postgresql": "postgres_server",
    "mariadb": "mariadb_url",
    "etcd": "etcd_server",
    "zookeeper": "zookeeper_server",
}
"""The fixture of each store's server."""

BIGINT = 2**63 - 1

LARGEST = {"sqlite": BIGINT, "postgresql": BIGINT, "mariadb": BIGINT}
"""The largest fence that a store can keep, where there is one."""

NEAR = (1, 2**31, 2**32, 2**53, 10**16, 2**63, 10**19, 2**64, 10**38, 2**128)
"""Where a kind of number ends, or gets one digit more."""

NUMBERS = itertools.count()


def mostly(usual: st.SearchStrategy[T], *others: st.SearchStrategy[T]) -> st.SearchStrategy[T]:
    """Draw from the first three times out of four."""
    return st.integers(0, 3).flatmap(lambda which: usual if which else st.one_of(*others))


@st.composite
def histories(draw: st.DrawFn) -> list[Change]:
    """Draw changes of one cell whose fences are mostly neighbours, so that each digit counts."""
    middle = draw(st.one_of(st.sampled_from(NEAR), st.integers(1, 2**130)))
    near = st.integers(-2, 2).map(lambda away: max(1, middle + away))
    fences = mostly(near, st.none(), st.sampled_from(NEAR))
    versions = mostly(st.none(), st.integers(0, 3), st.sampled_from((2**53 + 1, 2**63, 2**64, 10**30)))
    values = mostly(st.binary(max_size=3), st.none())
    return draw(st.lists(st.builds(Change, value=values, if_version=versions, fence=fences), min_size=3, max_size=8))


@pytest.fixture
def opened(
    store: str, namespace: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Store]:
    url = "memory:" if store == "memory" else f"sqlite:{tmp_path_factory.mktemp('cells')}/locks.db"
    if STORES[store]:
        server = request.getfixturevalue(STORES[store])
        url = f"{getattr(server, 'url', server)}{'/cells' if store == 'zookeeper' else ''}"
    runtime = BlockingRuntime()
    found = registry.opener(url).open(runtime, namespace)
    yield found
    finish(found.close())
    runtime.close()


@pytest.mark.parametrize("store", list(STORES))
@given(changes=histories())
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_fences_of_any_size_give_the_same_result(store: str, opened: Store, changes: list[Change]) -> None:
    most = LARGEST.get(store, math.inf)
    cell, name = EMPTY, f"cell {next(NUMBERS)}"
    for change in changes:
        if change.value is not None and (change.fence or 0) > most:
            with pytest.raises(ValueError, match=rf"{change.fence}.*{most}"):
                finish(opened.compare_and_set(name, change))
            continue
        after = apply_change(cell, change)
        assert finish(opened.compare_and_set(name, change)) == after
        cell = Cell(after.value, after.version, after.fence)
