"""What the runs' locks protect refuses what is too late, by the guard that users have, and writes down all of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from time import monotonic

import pytest

from leasehold.guards import sql
from leasehold_lab.verify.clients.resource import Resource, Values, Visitor


@pytest.fixture(params=["values", "resource"])
def values(request: pytest.FixtureRequest) -> Iterator[Values]:
    if request.param == "values":
        yield Values(monotonic)
    else:
        with Resource(monotonic) as resource:
            yield resource


def test_what_is_applied(values: Values) -> None:
    for who, token, applied in (
        ("one", 5, True),
        ("one", 5, True),  # the same holder writes again
        ("other", 5, False),  # nobody else has its token
        ("other", 4, False),
        ("other", 6, True),
        ("one", 5, False),
    ):
        assert values.write(who, "stock", token) is applied
    assert values.write("late", "another", 1)
    assert [write.accepted for write in values.writes] == [True, True, False, False, True, False, True]


def test_it_is_the_guard_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    with Resource(monotonic) as resource, closing(Visitor(resource.port)) as visitor:
        assert visitor.write("one", "stock", 5)
        assert not visitor.write("other", "stock", 4)
        monkeypatch.setattr(sql, "update", lambda *args, **options: 1)
        assert visitor.write("other", "stock", 4), "a guard that lets all pass is seen"
