"""The harnesses in which the tests of the engine and the primitives run."""

from __future__ import annotations

import pytest

from leasehold_lab.runtimes.harnesses import AsyncioHarness, BlockingHarness, Harness, SimulatedHarness


@pytest.fixture(params=[BlockingHarness, AsyncioHarness, SimulatedHarness], ids=lambda kind: kind.name)
def harness(request: pytest.FixtureRequest) -> Harness:
    return request.param()
