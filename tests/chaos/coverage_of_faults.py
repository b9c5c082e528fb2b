"""The fault catalogue, and the tests of each row. Run as a program, this file writes the table into the docs."""

from __future__ import annotations

import argparse
import ast
import tomllib
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from typing import Any

from leasehold_lab.conformance import cases
from leasehold_lab.verify.deployments import PLANS
from leasehold_lab.verify.faults.client_faults import KINDS

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "correctness.md"
BEGIN, END = "<!-- faults: begin (tests/chaos/coverage_of_faults.py writes it) -->", "<!-- faults: end -->"

ROWS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("coverage.toml").read_text(encoding="utf-8"))

REAL = ("stores", "process", "guard", "verify", "chaos", "security")
"""Folders of tests that run on real servers, files and processes."""

EXPECTED = {"A": 10, "B": 11, "C": 22, "D": 9, "E": 14, "F": 10, "G": 10, "H": 8, "I": 4, "J": 6, "K": 8}
"""The number of rows in each group."""


def provoked() -> dict[str, list[str]]:
    """Return for each row the faults of ``leasehold verify`` that provoke it."""
    found = defaultdict[str, list[str]](list)
    for kind in KINDS.values():
        for row in kind.ids:
            found[row].append(kind.key)
    for name, plan in PLANS.items():
        for fault in plan.faults:
            for row in fault.ids:
                found[row].append(f"{name}: {fault.key}")
    return found


@cache
def functions(path: Path) -> frozenset[str]:
    """Return the names of all functions of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def missing(reference: str) -> str | None:
    """Return what is wrong with a reference to a test; None if the test exists."""
    if reference.startswith("kit:"):
        known = {name.rpartition("/")[2] for name, _ in cases()}
        return None if reference[4:] in known else f"the kit has no case {reference[4:]}"
    path, _, name = reference.partition("::")
    if not (TESTS / path).is_file():
        return f"there is no {path}"
    return None if name in functions(TESTS / path) else f"{path} has no {name}"


def real(row: str) -> bool:
    """Return whether a row is covered on real servers, files or processes."""
    tests = ROWS[row].get("tests", [])
    return bool(provoked().get(row)) or any(test.startswith(("kit:", *REAL)) for test in tests)


def covered(row: str) -> bool:
    """Return whether a row has a test or a fault of ``leasehold verify``."""
    return bool(ROWS[row].get("tests")) or bool(provoked().get(row))


def table() -> str:
    """Return the table for the page."""
    faults = provoked()
    count = Counter({"all": len(ROWS), "real": sum(map(real, ROWS)), "any": sum(map(covered, ROWS))})
    lines = [
        f"{count['any']} of {count['all']} rows are covered, "
        f"{count['real']} of them on real servers, files and processes.",
        "",
        "| row | fault | caused by `leasehold verify` as | tests, in `tests/` | if none, why |",
        "|---|---|---|---|---|",
    ]
    for row, facts in ROWS.items():
        made = ", ".join(f"`{fault}`" for fault in dict.fromkeys(faults.get(row, [])))
        tests = "<br>".join(f"`{test}`" for test in facts.get("tests", []))
        lines.append(f"| {row} | {facts['fault']} | {made} | {tests} | {facts.get('why', '')} |")
    return "\n".join(lines)


def written(page: str) -> str:
    """Return the page with the current table."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def listed(*, missing_only: bool) -> list[str]:
    """Return a line for each row: what covers it, or why nothing does."""
    faults, lines = provoked(), list[str]()
    for row, facts in ROWS.items():
        how = "real" if real(row) else "simulated" if covered(row) else "MISSING"
        if not missing_only or how == "MISSING":
            by = [*dict.fromkeys(faults.get(row, [])), *facts.get("tests", [])]
            lines.append(f"{row:<4} {how:<10} {facts['fault']}: {', '.join(by) or facts.get('why', '')}")
    return lines


def main() -> None:
    """Write the table, or list the rows."""
    parser = argparse.ArgumentParser(description="Write the table of faults into the docs, or list it.")
    parser.add_argument("--list", action="store_true", help="list all rows, and what covers each")
    parser.add_argument("--missing", action="store_true", help="list the rows that nothing covers, and why")
    words = parser.parse_args()
    if words.list or words.missing:
        print("\n".join(listed(missing_only=words.missing)))
    else:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
