"""The museum's options."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--peers", action="append", metavar="PYTHON", help="run the libraries installed there, too")
    parser.addoption("--write-museum", action="store_true", help="write docs/museum.md from this run, with --peers")


@pytest.fixture(scope="session")
def interpreters(pytestconfig: pytest.Config) -> list[str]:
    """Return the interpreters that have other libraries."""
    given = pytestconfig.getoption("--peers", default=None)
    named = given or [one for one in os.environ.get("LEASEHOLD_PEERS", "").split(":") if one]
    if not named:
        pytest.skip("no --peers given, and no LEASEHOLD_PEERS")
    return list(named)
