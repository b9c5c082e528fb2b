"""A run as one self-contained HTML page: the table, a picture of each row, and the command that repeats it."""

from __future__ import annotations

from html import escape
from importlib import resources
from string import Template

from leasehold_lab.demo.report.table import COLUMNS, cells
from leasehold_lab.demo.report.timeline import figure, longest
from leasehold_lab.demo.result import DemoResult, RowResult
from leasehold_lab.demo.rows import MEANINGS
from leasehold_lab.pages import style


def page(result: DemoResult) -> str:
    """Return the page, as HTML that is also well-formed XML."""
    template = Template(resources.files("leasehold_lab.demo.report").joinpath("page.html").read_text(encoding="utf-8"))
    services = "1 service" if result.services == 1 else f"{result.services} services"
    return template.substitute(
        style=style(),
        title=escape(f"{result.requests} requests at once, {services}, one counter"),
        verdict=escape(result.verdict()),
        table=_table(result),
        figures="\n".join(_figure(row, longest(result.rows)) for row in result.rows),
        facts=_facts(result),
    )


def _table(result: DemoResult) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in COLUMNS)
    body = "\n".join(_table_row(row) for row in result.rows)
    return f'<table class="rows"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _table_row(row: RowResult) -> str:
    grades = {"final count": "good" if row.exact else "bad", "lost updates": "bad" if row.lost else ""}
    grades["errors"] = "bad" if row.failures else ""
    data = [
        f'<td data-column="{escape(column)}" class="{grades.get(column, "")}">{escape(cell)}</td>'
        for column, cell in zip(COLUMNS, cells(row), strict=True)
    ]
    return f"<tr>{''.join(data)}</tr>"


def _figure(row: RowResult, length: int) -> str:
    pairs = row.overlapping_pairs
    if pairs:
        said = f"{pairs:,} pairs of requests overlap; at most {row.most_at_once} were between read and write at once."
    else:
        said = "No two requests overlap."
    reasons = "".join(f"<li>{count} × {escape(reason)}</li>" for reason, count in row.reasons.items())
    errors = f"<p>Errors:</p><ul>{reasons}</ul>" if reasons else ""
    grade = "bad" if pairs else "good"
    return (
        f"<section><h3>{escape(row.title)}: {row.final} of {row.requests}</h3><p>{escape(MEANINGS[row.guard])}</p>"
        f'<p class="{grade}">{escape(said)}</p>{errors}{figure(row, length)}</section>'
    )


def _facts(result: DemoResult) -> str:
    facts = {
        "store": result.store,
        "balancer": result.balancer,
        "whole run": f"{result.seconds:.1f} s",
        **result.facts,
    }
    rows = [f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in facts.items()]
    rows.append(f"<tr><th>run it again</th><td><code>{escape(result.command)}</code></td></tr>")
    return "".join(rows)
