"""The conformance kit: what every store must do, stated once, for stores of this library and of others.

A case is a coroutine function of a harness and of what opens the store. In a test file of yours:

Example:
    ```python
    import pytest
    from leasehold_lab.conformance import cases
    from leasehold_lab.runtimes.harnesses import AsyncioWorld, BlockingWorld

    @pytest.mark.parametrize("harness", [BlockingWorld(), AsyncioWorld()], ids=str)
    @pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in cases()])
    def test_my_store(harness, case):
        harness.run(lambda harness: case(harness, "mystore://localhost:4321"))
    ```

Cases are told apart by namespaces, so one server serves all of them, one after another or at the same time. A store
that does not promise everything passes its `Capabilities`: ``cases(MyStore.capabilities)``. To see both sides of a
failed comparison, call ``pytest.register_assert_rewrite("leasehold_lab.conformance")`` in your ``conftest.py``.
"""

from __future__ import annotations

from collections.abc import Iterator

from leasehold._model import Capabilities
from leasehold_lab.conformance.case_context import REGISTER, Case
from leasehold_lab.conformance.locks import (
    exclusion,
    leases,
    losing,
    naming,
    permits,
    queueing,
    reading,
    reentrance,
    releasing,
    renewing,
    several,
)
from leasehold_lab.conformance.objects import (
    cells,
    counting,
    doing_once,
    electing,
    meeting,
    optimistic,
    sharing,
)
from leasehold_lab.conformance.store import breaking, inspecting, protocol

__all__ = ["Case", "cases"]

PARTS = (
    exclusion,
    queueing,
    releasing,
    leases,
    losing,
    inspecting,
    breaking,
    naming,
    reentrance,
    reading,
    permits,
    renewing,
    several,
    electing,
    protocol,
    cells,
    optimistic,
    doing_once,
    sharing,
    counting,
    meeting,
)
"""The modules that state cases, in the order in which a new store meets them."""


def cases(promised: Capabilities | None = None) -> Iterator[tuple[str, Case]]:
    """Yield the id and the body of each case that a store with these capabilities must pass; without them, of all."""
    for part in PARTS:
        for stated in REGISTER[part.__name__]:
            if promised is None or all(getattr(promised, need) for need in stated.needs):
                yield stated.id, stated.body
