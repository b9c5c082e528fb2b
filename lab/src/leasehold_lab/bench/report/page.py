"""A run as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from leasehold_lab.bench.report.bars import bars
from leasehold_lab.bench.report.table import cells, heads
from leasehold_lab.bench.result import Result, Row

STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 980px; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse; margin: .6em 0 2em; font-size: 13px; font-variant-numeric: tabular-nums }
th, td { padding: .2em .7em; text-align: right; border-bottom: 1px solid #8884 }
th:first-child, td:first-child { text-align: left }
dt { font-weight: 600 } dd { margin: 0 0 .4em }
div { overflow-x: auto }
"""

READING = (
    "Bars are medians of the rounds; the line in a bar goes from the slowest round to the fastest; the dashed line is "
    "the floor. Rates depend on the machine: read the ratios, which are taken round by round. An operation is an "
    "acquire with its release; in hand-over it counts only if the lock went to another contender. Reads and commands "
    "are counted on the server; commands that a script calls count, too."
)


def page(result: Result) -> str:
    """Return the page, as HTML that is also well-formed XML."""
    return (
        '<html xmlns="http://www.w3.org/1999/xhtml" lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width"/><title>leasehold bench</title>'
        f"<style>{STYLE}</style></head><body><h1>Locks, side by side</h1><p>{escape(READING)}</p>"
        + "".join(_section(row) for row in result.rows)
        + f"<h2>Settings</h2>{_list(result.settings)}<h2>Run</h2>{_list(result.facts)}"
        + (f"<h2>Not measured</h2>{_list(result.missing)}" if result.missing else "")
        + "</body></html>\n"
    )


def _section(row: Row) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in ("", *heads(row)[1:]))
    lines = ("".join(f"<td>{escape(cell)}</td>" for cell in line) for line in cells(row))
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return (
        f'<h2>{escape(row.measure.title)}</h2><div>{bars(row)}</div><div><table data-measure="{row.measure.key}">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _list(pairs: Mapping[str, str]) -> str:
    return "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in pairs.items()) + "</dl>"
