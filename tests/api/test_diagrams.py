"""The diagrams in the docs are those of the tables in the code."""

from __future__ import annotations

import importlib.util
from pathlib import Path

DRAW = Path(__file__).parents[2] / "docs" / "draw.py"


def test_the_hold_diagram_is_drawn_from_the_table() -> None:
    spec = importlib.util.spec_from_file_location("draw", DRAW)
    assert spec is not None
    assert spec.loader is not None
    draw = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(draw)
    page = draw.PAGE.read_text(encoding="utf-8")
    assert draw.BEGIN in page
    assert draw.drawn(page) == page, "run: python docs/draw.py"
