"""What the docs repeat is that of its source: diagrams of tables in the code, figures of the page of details."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from leasehold_lab.bench.report import summary

DRAW = Path(__file__).parents[2] / "docs" / "draw.py"


def loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("draw", DRAW)
    assert spec is not None
    assert spec.loader is not None
    draw = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(draw)
    return draw


def test_the_hold_diagram_is_drawn_from_the_table() -> None:
    draw = loaded()
    page = draw.PAGE.read_text(encoding="utf-8")
    assert draw.BEGIN in page
    assert draw.drawn(page) == page, "run: python docs/draw.py"


def test_the_short_page_of_performance_has_the_figures_of_the_details() -> None:
    draw = loaded()
    details, short = draw.FIGURES.read_text(encoding="utf-8"), draw.SHORT.read_text(encoding="utf-8")
    assert summary.page(details, draw.FIGURES.name) == short, "run: python docs/draw.py"
    drawn = draw.SHORT.with_name(summary.PICTURE).read_text(encoding="utf-8")
    assert summary.picture(details) == drawn, "run: python docs/draw.py"
    assert short.count("\n") <= 80
