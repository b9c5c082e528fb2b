"""Both ways of the plain case on a database: by one statement, or by the store's own steps."""

from __future__ import annotations

import pytest

from leasehold.stores._sql import plain


@pytest.fixture
def by_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """No client takes the plain case."""
    monkeypatch.setattr(plain, "is_plain", lambda ticket: False)


@pytest.fixture(params=["alone", "steps"])
def way(request: pytest.FixtureRequest) -> str:
    """Run the test in both ways."""
    if request.param == "steps":
        request.getfixturevalue("by_steps")
    return str(request.param)
