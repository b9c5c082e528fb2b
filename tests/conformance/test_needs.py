"""A store that promises less gets only cases that it can pass: the memory store in virtual time, with each flag off."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from leasehold.store_api import Capabilities
from leasehold.stores.memory import MemoryStore
from leasehold_lab.conformance import cases
from leasehold_lab.runtimes.harnesses import SimulatedHarness

PROMISED = MemoryStore.capabilities

LESS: dict[str, dict[str, Any]] = {
    each.name: {each.name: False} for each in fields(Capabilities) if getattr(PROMISED, each.name) is True
} | {"longest": {"longest": 60.0}, "fair and fair_shared": {"fair": False, "fair_shared": False}}
"""What a store promises less than the memory store, by flag: a new one is here at once."""

DAY = 4
"""By day every so-manieth case runs, in turn; by night all."""


@pytest.mark.parametrize("every", [DAY, pytest.param(1, marks=pytest.mark.nightly)], ids=["some", "all"])
@pytest.mark.parametrize("missing", LESS)
def test_no_case_needs_what_a_store_does_not_promise(missing: str, every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    promised = replace(PROMISED, why_not="it is a test", **LESS[missing])
    monkeypatch.setattr(MemoryStore, "capabilities", promised)
    chosen = list(cases(promised))
    assert len(chosen) > 200
    for name, case in chosen[[*LESS].index(missing) % every :: every]:
        try:
            SimulatedHarness().run(lambda harness, case=case: case(harness, "memory:"))
        except BaseException as error:
            error.add_note(f"in {name}")
            raise


def test_a_store_of_runs_alone_gets_no_case() -> None:
    assert not list(cases(replace(PROMISED, only_runs=True)))
