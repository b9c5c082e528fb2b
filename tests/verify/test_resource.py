"""The guarded resource of a run refuses late writes by means of `leasehold.guards`, and records all writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from time import monotonic

import pytest

from leasehold.guards import sql
from leasehold_lab.verify.clients.resource import Resource, ResourceClient, Values


@pytest.fixture(params=["values", "resource"])
def values(request: pytest.FixtureRequest) -> Iterator[Values]:
    if request.param == "values":
        yield Values(monotonic)
    else:
        with Resource(monotonic) as resource:
            yield resource


def test_applies_writes_in_token_order(values: Values) -> None:
    for who, token, applied in (
        ("one", 5, True),
        ("one", 5, True),  # the same holder writes again
        ("other", 5, False),  # the token belongs to another holder
        ("other", 4, False),
        ("other", 6, True),
        ("one", 5, False),
    ):
        assert values.write(who, "stock", token) is applied
    assert values.write("late", "another", 1)
    assert [write.accepted for write in values.writes] == [True, True, False, False, True, False, True]


def test_the_guard_refuses_stale_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    with Resource(monotonic) as resource, closing(ResourceClient(resource.port)) as resource:
        assert resource.write("one", "stock", 5)
        assert not resource.write("other", "stock", 4)
        monkeypatch.setattr(sql, "update", lambda *args, **options: 1)
        assert resource.write("other", "stock", 4), "without the guard, the write passes"
