"""Releases that a test names itself, whatever the run is on."""

from __future__ import annotations

import pytest

from releases.archive import fetch
from releases.catalogue import RELEASES


@pytest.fixture
def program(release: str) -> str:
    """The server's program of the release that the parameter ``release`` names."""
    return str(fetch(release) / RELEASES[release].programs[0])
