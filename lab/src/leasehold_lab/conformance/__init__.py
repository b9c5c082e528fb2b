"""The conformance kit: the promises of every store as test cases, for stores of this library and of others.

A case is a coroutine function of a harness and of a URL or an `Opener`. In your test file:

Example:
    ```python
    import pytest
    from leasehold_lab.conformance import cases
    from leasehold_lab.runtimes.harnesses import AsyncioHarness, BlockingHarness

    @pytest.mark.parametrize("harness", [BlockingHarness(), AsyncioHarness()], ids=str)
    @pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in cases()])
    def test_my_store(harness, case):
        harness.run(lambda harness: case(harness, "mystore://localhost:4321"))
    ```

Each case has its own namespace, so one server serves all cases, one after another or at the same time. For a store
that does not promise everything, pass its `Capabilities`: ``cases(MyStore.capabilities)``. It must take leases of 60 s,
lock delay included. To see both sides of a failed comparison, call
``pytest.register_assert_rewrite("leasehold_lab.conformance")`` in your ``conftest.py``.
"""

from __future__ import annotations

from collections.abc import Iterator

from leasehold._model import Capabilities
from leasehold_lab.conformance.case_context import REGISTER, Case
from leasehold_lab.conformance.locks import (
    cancellations,
    exclusion,
    leases,
    losses,
    multi_locks,
    names,
    permits,
    queues,
    read_write_locks,
    reentrant_locks,
    releases,
    renewals,
)
from leasehold_lab.conformance.objects import (
    barriers,
    cached_values,
    cells,
    elections,
    latches,
    once,
    versioned_values,
)
from leasehold_lab.conformance.store import force_release, inspection, protocol

__all__ = ["Case", "cases"]

MODULES = (
    exclusion,
    queues,
    cancellations,
    releases,
    leases,
    losses,
    inspection,
    force_release,
    names,
    reentrant_locks,
    read_write_locks,
    permits,
    renewals,
    multi_locks,
    elections,
    protocol,
    cells,
    versioned_values,
    once,
    cached_values,
    latches,
    barriers,
)
"""The modules with cases, in a useful order for a new store."""


def cases(promised: Capabilities | None = None) -> Iterator[tuple[str, Case]]:
    """Yield the id and the body of each case that a store with these capabilities must pass; of all cases for None."""
    if promised is not None and promised.only_runs:
        return  # each case needs a lock
    for module in MODULES:
        for registered in REGISTER[module.__name__]:
            if promised is None or all(getattr(promised, need) for need in registered.needs):
                yield registered.id, registered.body
