"""Errors that users see are public classes: error trackers group by class."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import leasehold
import leasehold.guards
from support.modules import importable

INSIDE = {
    *("RetryableError", "SlotMigrating", "HandshakeAborted", "Redirected", "Unconfirmed", "Busy"),
    *("NotPermitted", "UnknownPrimary"),
}
"""Subclasses that stores catch themselves."""

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


def test_a_refusal_says_what_became_of_the_request() -> None:
    refused = leasehold.StoreRefused("a right is missing")
    assert (refused.lasting, refused.unknown, refused.code) == (True, False, "")
    refused = leasehold.StoreRefused("serialization", code="40001", outcome=leasehold.Outcome.UNKNOWN)
    assert (refused.lasting, refused.unknown, refused.code) == (False, True, "40001")
    assert isinstance(refused, leasehold.StoreUnavailable)
