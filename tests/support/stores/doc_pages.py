"""What the pages of `docs/backends` state in their tables, for tests that hold it against what happens."""

from __future__ import annotations

import re
from pathlib import Path

BACKENDS = Path(__file__).parents[3] / "docs" / "backends"


def row(page: str, label: str) -> list[str]:
    """Return the cells after the one that begins with ``label``, in the only row that has such a one."""
    lines = (BACKENDS / f"{page}.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    (found,) = [one for one in cells if one[0] == label or one[0].startswith((f"{label} (", f"{label},", f"{label};"))]
    return found[1:]


def numbers(page: str, label: str) -> tuple[int, ...]:
    """Return the number with which each cell of a row begins; ``none`` is 0."""
    cells = ["0" if cell == "none" else cell for cell in row(page, label)]
    return tuple(int(found[0]) for cell in cells if (found := re.match(r"\d+", cell)))
