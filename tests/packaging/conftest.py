"""The built distributions, as fixtures: a worker of pytest-xdist builds each once."""

from __future__ import annotations

import pytest
from building import LAB, TOP, Distribution, built


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Distribution:
    """Build leasehold."""
    return built(TOP, tmp_path_factory.mktemp("library"))


@pytest.fixture(scope="session")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> Distribution:
    """Build leasehold-lab."""
    return built(LAB, tmp_path_factory.mktemp("laboratory"))
