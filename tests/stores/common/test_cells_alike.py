"""Cells: every store accepts and refuses the same writes as the memory store, however large the fences are.

Numbers in scripts of Redis are exact to 53 bits only, those of SQL end at 63. Fences are drawn near such bounds.

Only etcd keeps a cell in two keys, of which one may be removed alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leasehold._model import Cell, Change
from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.store_api import Store
from leasehold.stores import registry
from leasehold.stores._common.cells import EMPTY, apply_change
from leasehold.stores.etcd.keys import only

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


@pytest.mark.parametrize("store", ["etcd"])
@pytest.mark.parametrize("gone", ["value", "note"])
def test_a_cell_of_which_an_operator_removed_one_key_can_be_written(
    store: str, opened: Store, namespace: str, gone: str
) -> None:
    """Without its value it is empty, but its fence still counts. Without its note only the fence is gone."""
    name = f"cell {next(NUMBERS)}"

    def changed(**change: Any) -> Cell:
        return finish(opened.compare_and_set(name, replace(Change(value=b"new", ttl=600.0), **change), within=2.0))

    for version in (1, 2):
        assert changed(fence=50).version == version
    etcd: Any = opened
    key = f"{etcd._keys.cell(name)}/{gone}"
    finish(etcd._gateway.call("/v3/kv/deleterange", only(key), etcd._runtime.now() + 2.0))
    version, fence = (0, 50) if gone == "value" else (2, 0)
    assert changed(value=None) == Cell(None if gone == "value" else b"new", version, fence)
    assert changed(fence=7).changed is (gone == "note")
    version += gone == "note"
    assert not changed(if_version=version + 1).changed
    assert changed(if_version=version).version == version + 1
    assert changed(fence=51) == Cell(b"new", version + 2, 51, changed=True)
