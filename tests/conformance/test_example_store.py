"""The conformance kit on the example of a store by another author; it uses `leasehold.store_api` alone."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from leasehold.store_api import Capabilities
from leasehold_lab.conformance import Case, cases
from leasehold_lab.runtimes.harnesses import AsyncioHarness, BlockingHarness, Harness

FILE = Path(__file__).parents[2] / "examples" / "example_store.py"

PROMISED = Capabilities(notifies=False, hands_over=False)


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FILE.parent))
    return importlib.import_module(FILE.stem)


HARNESSES: tuple[Callable[[], Harness], ...] = (BlockingHarness, AsyncioHarness)

BY_DAY = 4
"""By day each case of so many runs, in one flavor each, in turn; by night all run in both."""

RUNS = [
    pytest.param(
        harness,
        case,
        id=f"{flavor}-{name}",
        marks=[] if number % BY_DAY == 0 and number // BY_DAY % 2 == flavor else [pytest.mark.nightly],
    )
    for number, (name, case) in enumerate(cases(PROMISED))
    for flavor, harness in enumerate(HARNESSES)
]


@pytest.mark.parametrize(("harness", "case"), RUNS)
def test_conformance(example: ModuleType, harness: Callable[[], Harness], case: Case) -> None:
    opener = example.ExampleOpener()
    harness().run(lambda harness: case(harness, opener))


def test_it_promises_what_the_kit_checks(example: ModuleType) -> None:
    promised = example.ExampleStore.capabilities
    assert (promised.notifies, promised.hands_over, promised.fair, promised.cells) == (False, False, True, True)
    assert [name for name, _ in cases(promised)] == [name for name, _ in cases(PROMISED)]


def test_the_example_imports_from_the_public_module_alone() -> None:
    tree = ast.parse(FILE.read_text(encoding="utf-8"))
    imported = {node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom)}
    imported |= {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    ours = {module for module in imported if module.partition(".")[0] not in sys.stdlib_module_names}
    assert ours == {"leasehold.store_api"}
