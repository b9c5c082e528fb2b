"""Redisson's own tests are the list against which ours are complete: each has one of ours, or a reason why not."""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from leasehold_lab.conformance import cases

TESTS = Path(__file__).parents[1]
LIST: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("list.toml").read_text(encoding="utf-8"))
KIT = {name.partition("/")[2] for name, _ in cases()}

CLASSES = 30
"""Test classes of its synchronizers, and one more group for what none of them tests."""


@cache
def functions(path: Path) -> frozenset[str]:
    """Return the names of all tests of a file, also those in classes."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def lines(group: dict[str, Any]) -> dict[str, Any]:
    return {name: line for name, line in group.items() if name not in ("tests", "every")}


def missing(reference: str) -> str | None:
    """Say what is wrong with the reference to a test of ours."""
    if reference.startswith("kit:"):
        return None if reference[4:] in KIT else f"the kit has no case {reference[4:]}"
    path, _, name = reference.partition("::")
    if not (TESTS / path).is_file():
        return f"there is no {path}"
    return None if name in functions(TESTS / path) else f"{path} has no {name}"


@pytest.mark.parametrize("title", LIST)
def test_every_line_has_a_test_or_a_reason(title: str) -> None:
    group = LIST[title]
    if "every" in group:
        assert not lines(group), "either one reason for all, or a line for each"
        assert len(group["every"]) >= len("the same")
        return
    assert len(lines(group)) == group["tests"], "a line for each of its tests"
    for name, line in lines(group).items():
        if isinstance(line, str):
            assert len(line) >= len("the same"), f"{name} has no reason"
        else:
            wrong = [said for said in map(missing, line) if said is not None]
            assert line, f"{name} has neither a test nor a reason"
            assert not wrong, f"{name}: {wrong}"


@pytest.mark.parametrize("title", LIST)
def test_tests_that_a_reason_names_exist(title: str) -> None:
    for reason in (line for line in (*lines(LIST[title]).values(), LIST[title].get("every", "")) if line):
        if isinstance(reason, str):
            words = [word.strip(".,;:()") for word in reason.split()]
            named = [word for word in words if word.startswith("kit:") or "::" in word]
            assert not [said for said in map(missing, named) if said is not None]


def test_the_list_is_whole() -> None:
    assert len(LIST) == CLASSES
    assert sum(group["tests"] for group in LIST.values()) == 309


def test_a_test_that_does_not_exist_is_seen() -> None:
    assert missing("kit:no_such_case")
    assert missing("unit/rules/test_rules.py::test_no_such_test")
    assert missing("unit/no_such_file.py::test_x")
    assert missing("kit:tokens_increase") is None
