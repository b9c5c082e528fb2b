"""The pages for those who join lead to files that exist, and to few of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
PAGE = TOP / "CONTRIBUTING.md"

MOST = 5
"""Files that a newcomer reads before a first change, at most."""

TASKS = ("Add a backend", "Mend a hand-over on Redis", "Add a primitive")

LANDED = all((TOP / place).is_dir() for place in ("lab/src/leasehold_lab", "src/leasehold/_engine"))
"""Whether the layout that CONTRIBUTING.md describes is there."""


@pytest.mark.parametrize("task", TASKS)
def test_a_task_names_few_files(task: str) -> None:
    assert 1 <= len(files(task)) <= MOST


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.skipif(not LANDED, reason="the layout of CONTRIBUTING.md is not complete: _engine/ and lab/ are missing")
def test_the_files_of_a_task_exist(task: str) -> None:
    assert [name for name in files(task) if not (TOP / name).is_file()] == []


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "SECURITY.md"])
def test_links_lead_somewhere(page: str) -> None:
    targets = re.findall(r"\]\(([^)\s#]+)", (TOP / page).read_text(encoding="utf-8"))
    assert targets
    assert [target for target in targets if "://" not in target and not (TOP / target).exists()] == []


def files(task: str) -> list[str]:
    """Return the first name in backquotes of each numbered line below a heading."""
    text = PAGE.read_text(encoding="utf-8")
    section = text.partition(f"### {task}\n")[2]
    return re.findall(r"^\d+\. `([^`]+)`", re.split(r"^#", section, flags=re.MULTILINE)[0], flags=re.MULTILINE)
