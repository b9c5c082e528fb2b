"""The worlds in which the tests of the engine and the primitives run."""

from __future__ import annotations

import pytest

from leasehold_lab.runtimes.case_runtimes import AsyncioWorld, BlockingWorld, SimulatedWorld, World


@pytest.fixture(params=[BlockingWorld, AsyncioWorld, SimulatedWorld], ids=lambda kind: kind.name)
def world(request: pytest.FixtureRequest) -> World:
    return request.param()
