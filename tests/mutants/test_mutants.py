"""Seeded mistakes are found by the tests: a few by day, so that this is kept alive; all of them by night."""

from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from mutant_catalogue import PACKAGES, TESTS, Mutant, PatchError, catalogue, chosen
from mutant_runs import Verdict, control, run_all

MUTANTS = catalogue()


@cache
def names_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_patch_applies_and_its_tests_exist(mutant: Mutant) -> None:
    text = mutant.patched(PACKAGES)
    if mutant.file.endswith(".py"):
        compile(text, mutant.file, "exec")
    assert mutant.killed_by
    for test in mutant.killed_by:
        file, _, name = test.partition(" ")[0].partition("::")
        assert (TESTS / file).exists(), test
        assert not name or name.partition("[")[0] in names_of(TESTS / file), test


SELECTED = sorted({test for mutant in MUTANTS for test in mutant.killed_by if " " in test})
"""Tests that are chosen by an expression: a file, ``-k``, and the expression."""

COLLECT = """
import shlex, sys
import pytest
from _pytest.mark import deselect_by_keyword

class Look:
    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config, items):
        for words in sys.argv[1:]:
            file, option, config.option.keyword = shlex.split(words)
            chosen = [item for item in items if item.path == config.rootpath / "tests" / file]
            deselect_by_keyword(chosen, config)
            assert chosen and option == "-k", words

files = {words.partition(" ")[0] for words in sys.argv[1:]}
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "--collect-only", *files], [Look()]))
"""
"""Collects all files once, and tries each expression on them: to collect one of them takes seconds."""


@pytest.mark.nightly
def test_each_expression_selects_tests() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COLLECT, *SELECTED], cwd=TESTS, capture_output=True, text=True, check=False
    )
    assert SELECTED
    assert done.returncode == pytest.ExitCode.OK, done.stdout[-1000:] + done.stderr[-1000:]


def test_there_are_enough_of_all_parts() -> None:
    assert len(MUTANTS) >= 60
    assert 6 <= sum(mutant.day for mutant in MUTANTS) <= 10
    parts = {mutant.file.split("/")[0] for mutant in MUTANTS}
    stores = {mutant.file.split("/")[1] for mutant in MUTANTS if mutant.file.startswith("stores/")}
    assert parts >= {"_engine", "_rules.py", "primitives", "stores", "guards", "_runtimes"}
    assert any("/connection/" in mutant.file for mutant in MUTANTS)
    assert stores >= {"redis", "postgres", "mysql", "sqlite", "zookeeper", "etcd"}


def test_a_patch_that_does_not_apply_is_an_error() -> None:
    with pytest.raises(PatchError, match="0 times, not once"):
        replace(MUTANTS[0], old="this text stands nowhere").patched(PACKAGES)
    with pytest.raises(PatchError, match="no mutant nobody"):
        chosen(["nobody"], day=False)


@pytest.mark.timeout(300)
def test_the_sample_is_killed_and_what_changes_nothing_survives() -> None:
    harmless = replace(
        next(mutant for mutant in MUTANTS if mutant.name == "majority-off-by-one"),
        name="harmless",
        new="return 1 + nodes // 2",
    )
    runs = {run.mutant.name: run for run in run_all([*chosen([], day=True), harmless], 1)}
    assert runs.pop("harmless").verdict is Verdict.SURVIVED
    assert all(run.verdict is Verdict.KILLED for run in runs.values()), "\n".join(map(str, runs.values()))


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_all_are_killed() -> None:
    runs = list(run_all(MUTANTS, 2))
    alive = [str(run) for run in runs if run.verdict is not Verdict.KILLED]
    assert not alive, "\n".join(alive)
    assert not control(MUTANTS, 2), "the same tests fail on the code as it is"
