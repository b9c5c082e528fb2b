"""The specifications in specs/: what they promise holds in all states, and each safeguard switched off is found out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tlc import SPECS, Result, Run, check, runs


def each() -> Iterator[object]:
    for run in runs():
        marks = [pytest.mark.nightly, pytest.mark.timeout(1200)] if run.nightly else []
        yield pytest.param(run, id=f"{run.spec}: {run.name}", marks=marks)


@pytest.mark.parametrize("run", list(each()))
def test_tlc_finds_what_it_must(run: Run, record_property: Callable[[str, object], None]) -> None:
    result: Result = check(run)
    record_property("distinct states", result.distinct)
    print(f"{run.spec}: {run.name}: {result.distinct:,} distinct states in {result.seconds:.1f} s")
    if run.violates:
        assert result.violated == run.violates, f"the safeguard is off, and nothing was found:\n{result.output}"
    else:
        assert not result.violated, f"this must not happen:\n{result.output}"
        assert result.whole


def test_each_specification_is_checked_and_has_a_control() -> None:
    named = {run.spec for run in runs()}
    assert named == {path.stem for path in SPECS.glob("*.tla")}
    assert named == {run.spec for run in runs() if run.violates}
    for spec in named:
        properties = {name for run in runs(spec) for name in (*run.invariants, *run.properties)}
        assert any(not run.violates and not run.nightly for run in runs(spec)), f"{spec} is not checked by default"
        assert properties, f"{spec} says nothing"


def test_the_code_that_a_specification_names_is_there() -> None:
    top = SPECS.parent
    for path in SPECS.glob("*.tla"):
        header = path.read_text(encoding="utf-8").split("EXTENDS", 1)[0]
        named = [word.rstrip(",.;:)") for word in header.split() if word.startswith("src/")]
        assert named, f"{path.name} does not say which code it stands for"
        for name in named:
            stem, brace, rest = name.partition("{")
            names = (
                [stem + part + rest.partition("}")[2] for part in rest.partition("}")[0].split(",")]
                if brace
                else [name]
            )
            missing = [one for one in names if not Path(top, one).exists()]
            assert not missing, f"{path.name} names what is not there: {missing}"
