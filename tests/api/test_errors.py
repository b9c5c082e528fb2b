"""Errors that users see are public classes: error trackers group by class."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest

import leasehold
import leasehold.guards
from leasehold._engine.retry import documented
from leasehold.errors import StoreUnavailable
from support.modules import importable

INSIDE = {
    *("RetryableError", "SlotMigrating", "HandshakeAborted", "Redirected", "Unconfirmed", "Busy"),
    *("NotPermitted", "UnknownPrimary"),
}
"""Subclasses inside stores; no error of them leaves the library in its own class."""

PUBLIC = {*leasehold.__all__, *leasehold.guards.__all__}


def subclasses(cls: type) -> Iterator[type]:
    for sub in cls.__subclasses__():
        yield sub
        yield from subclasses(sub)


def test_errors_are_public_or_stay_inside() -> None:
    for name in importable():
        importlib.import_module(name)
    found = {cls.__name__ for cls in subclasses(leasehold.LeaseholdError) if cls.__module__.startswith("leasehold.")}
    assert found - INSIDE <= PUBLIC


@pytest.mark.parametrize("name", sorted(INSIDE))
def test_an_internal_error_leaves_in_a_documented_class(name: str) -> None:
    for module in importable():
        importlib.import_module(module)
    found = [cls for cls in subclasses(leasehold.StoreUnavailable) if cls.__name__ == name]
    assert found
    for cls in found:  # two, if a test before has imported its module anew
        error = cls("why")
        error.name, error.unknown, error.__cause__ = "stock:42", True, OSError("cause")
        shown = documented(error)
        assert type(shown) is (leasehold.StoreRefused if issubclass(cls, leasehold.StoreRefused) else StoreUnavailable)
        assert (str(shown), shown.name, shown.unknown, shown.lasting) == ("why", "stock:42", True, error.lasting)
        assert shown.__cause__ is error.__cause__
        assert documented(shown) is shown


def test_the_errors_of_a_store_from_elsewhere_keep_their_class() -> None:
    class Theirs(StoreUnavailable):
        """An error of another distribution."""

    error = Theirs("why")
    assert documented(error) is error


def test_a_refusal_says_what_became_of_the_request() -> None:
    refused = leasehold.StoreRefused("a right is missing")
    assert (refused.lasting, refused.unknown, refused.code) == (True, False, "")
    refused = leasehold.StoreRefused("serialization", code="40001", outcome=leasehold.Outcome.UNKNOWN)
    assert (refused.lasting, refused.unknown, refused.code) == (False, True, "40001")
    assert isinstance(refused, leasehold.StoreUnavailable)
