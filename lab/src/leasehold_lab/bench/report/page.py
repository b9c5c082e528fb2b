"""A run as one self-contained HTML page."""

from __future__ import annotations

from html import escape

from leasehold_lab.bench.contestant import Role
from leasehold_lab.bench.report.bars import COLORS, bars
from leasehold_lab.bench.report.table import cells, heads
from leasehold_lab.bench.result import Result, Row
from leasehold_lab.pages import color_key, definitions, document

READING = (
    "Bars are medians of the rounds; the line in a bar goes from the slowest round to the fastest; the dashed line is "
    "the floor. Rates depend on the machine: read the ratios, which are taken round by round. An operation is an "
    "acquire with its release; in hand-over it counts only if the lock went to another contender. Reads and commands "
    "are counted on the server; commands that a script calls count, too."
)

KEY = {Role.FLOOR: "the floor: the least that the network protocol allows", Role.OURS: "leasehold", Role.PEER: "others"}
"""What the colors of the bars mean."""


def page(result: Result) -> str:
    """Return the page, as HTML that is also well-formed XML."""
    key = {title: f'<rect y="1" width="32" height="10" fill="{COLORS[role]}"/>' for role, title in KEY.items()}
    return document(
        "leasehold bench",
        f"<h1>Locks, side by side</h1><p>{escape(READING)}</p>{color_key(key)}"
        + "".join(_section(row) for row in result.rows)
        + f"<h2>Settings</h2>{definitions(result.settings)}<h2>Run</h2>{definitions(result.facts)}"
        + (f"<h2>Not measured</h2>{definitions(result.missing)}" if result.missing else ""),
    )


def _section(row: Row) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in ("", *heads(row)[1:]))
    lines = ("".join(f"<td>{escape(cell)}</td>" for cell in line) for line in cells(row))
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return (
        f'<h2>{escape(row.measure.title)}</h2><div class="wide">{bars(row)}</div>'
        f'<div class="wide"><table data-measure="{row.measure.key}">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
