"""The table of integrations counts the lines of the recipes on the page `by-hand.md`, and their code can be parsed."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "integrations"

SECTIONS = re.split(r"^## ", (FOLDER / "by-hand.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]


def recipes(section: str) -> list[str]:
    """Return the recipe by hand and that with leasehold, as differences."""
    return re.findall(r"^```diff\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


def added(recipe: str) -> int:
    return sum(line.startswith("+") and line[1:].strip() != "" for line in recipe.splitlines())


def table() -> dict[str, tuple[str, str]]:
    """Return the columns `before` and `after` of each row, by what it is for."""
    rows = {}
    for line in (FOLDER / "README.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| [") and len(cells) == 5:
            rows[re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", cells[0])] = (cells[2], cells[3])
    return rows


@pytest.mark.parametrize("section", SECTIONS, ids=[each.partition("\n")[0] for each in SECTIONS])
def test_a_row_of_the_table_counts_what_the_page_shows(section: str) -> None:
    title, _, body = section.partition("\n")
    before, after = recipes(body)
    for name in re.split(r",\s", title):
        assert table()[name] == (str(added(before)), str(added(after))), name


@pytest.mark.parametrize("section", SECTIONS, ids=[each.partition("\n")[0] for each in SECTIONS])
def test_a_recipe_is_python(section: str) -> None:
    for recipe in recipes(section):
        ast.parse("\n".join(line[1:] for line in recipe.splitlines()))


def test_a_row_without_a_recipe_says_so() -> None:
    shown = {name for each in SECTIONS for name in re.split(r",\s", each.partition("\n")[0])}
    assert {before for name, (before, _) in table().items() if name not in shown} == {"none known"}
