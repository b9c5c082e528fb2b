"""The page ``docs/performance.md`` and its picture: the figures of the page of details, in one table.

They are read from the tables of that page, so the two cannot differ. A peer that a later run measured is taken from the
table of that run: its ratio to leasehold was measured there, within one run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from textwrap import fill

from leasehold_lab.bench.contestant import Role
from leasehold_lab.bench.measures import MEASURES, Measure, Trial
from leasehold_lab.bench.places import StoreKind
from leasehold_lab.bench.report.bars import BAR, COLORS, GAP, LABEL, ROOM, WIDTH

OURS = "leasehold"

NOTE = "† of a later run, [on a busy machine]({details}#on-a-busy-machine).\n\n"

LATER = "later"
"""Marks a peer that a later run measured, in its row."""

NAMED = ("redis-py Lock", "Redisson (Java)", "redsync (Go)")
"""The peers that each line names, as well as the fastest of all others. The picture has the first and the fastest."""

PICTURE = "performance.svg"
"""Name of the drawing that stands beside the page."""

PAGE = """\
# Performance

All figures are medians of `leasehold bench` on two shared cores, with all that leasehold promises switched on: lease
and renewal, fencing tokens, the queue. The **floor** of a measure is the fastest that the protocol allows: the same
bytes from a bare socket, one token passed through a Redis list, or bare write transactions of a database. Rates depend
on the machine, so read the ratios. [The details]({details}) have each library, the spread of the rounds,
[the run]({details}#the-run) that a figure is of, what the floors leave out, the aims, and where the
time goes.

![Acquire and release, and hand-over, as shares of the floor's rate]({picture})

| measure | per second | of its floor | times the rate of peers |
| --- | ---: | ---: | --- |
{lines}

{note}Peers poll, or have no queue, no renewal or no token; file and advisory locks write nothing. Each is set up as its
documentation tells its users.

## What costs what

{costs}
- What one thread pays beyond the floor is the Python between two system calls.
- A hand-over costs the same whatever is done inside: the longer the work, the nearer the ratio is to one.

## Repeat it

<!-- not run: it takes minutes -->
```console
$ pip install '.[redis,cli]' ./lab    # in a clone
$ leasehold bench --quick                      # a few ratios on Redis and SQLite, in less than a minute
$ leasehold bench redis://localhost:6379       # all measures on your store
```

The quick ratios are kept, each the lowest of calm machines of several kinds: a test fails if one is lower than
committed by more than a quarter in three tries. After a change that is meant to cost this much,
`leasehold bench --quick --write` commits those of your machine.

[More](repeat) adds other libraries, other stores, charts, and what takes half an hour.
`leasehold bench --docs docs/performance.md` writes this page, its picture and the page of details.
""".replace("(repeat)", "({details}#repeat-it)")

Table = dict[str, dict[str, str]]
"""By contestant and column."""


def tables(details: str) -> dict[str, list[Table]]:
    """Return the tables of measures by title, from the Markdown of the page of details."""
    found: dict[str, list[Table]] = {}
    for part in details.split("\n#")[1:]:
        heading, _, body = part.partition("\n")
        lines = [_cells(line) for line in body.splitlines() if line.startswith("|")]
        if len(lines) > 2 and lines[0][0] == "":
            table = {cells[0]: dict(zip(lines[0], cells, strict=False)) for cells in lines[2:]}
            found.setdefault(heading.lstrip("# ").casefold(), []).append(table)
    return found


def write(details: Path, short: Path) -> None:
    """Write the short page and its picture beside it, from the page of details."""
    text = details.read_text(encoding="utf-8")
    short.write_text(page(text, details.name), encoding="utf-8")
    short.with_name(PICTURE).write_text(picture(text), encoding="utf-8")


def page(details: str, name: str) -> str:
    """Return the page; ``name`` is that of the page of details."""
    known = tables(details)
    lines = "\n".join(line for measure, table in _measured(known) if (line := _line(measure, table)))
    costs = "\n".join(fill(f"- {cost}", 120, subsequent_indent="  ") for cost in _costs(known))
    note = NOTE.format(details=name) if "†" in lines else ""
    return PAGE.format(lines=lines, note=note, costs=costs, details=name, picture=PICTURE)


def picture(details: str) -> str:
    """Draw the measures on one Redis server: the leasehold, redis-py and the fastest other as shares of the floor."""
    drawn, top = list[str](), GAP
    for measure, runs in _measured(tables(details)):
        if measure.place is StoreKind.REDIS:
            table = {title: row for title, row in runs.items() if LATER not in row}
            bars = [(OURS, Role.OURS)] + [(peer, Role.PEER) for peer in _shown(table, NAMED[:1])]
            drawn.append(f'<text x="{GAP}" y="{top + BAR - 5}" font-weight="600">{escape(_title(measure))}</text>')
            for at, (one, role) in enumerate(bars, 1):
                drawn.append(_bar(one, _share(table[one]), COLORS[role], top + at * (BAR + GAP)))
            top += (len(bars) + 1) * (BAR + GAP) + GAP
    floor = LABEL + _SCALE
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}" role="img"'
        f' font-family="system-ui, sans-serif" font-size="12" fill="#808080"><title>Of the floor\'s rate</title>'
        f'<line x1="{floor}" x2="{floor}" y1="0" y2="{top}" stroke="{COLORS[Role.FLOOR]}" stroke-dasharray="3 3"/>'
        f'<text x="{floor + 6}" y="{BAR}">the floor</text>{"".join(drawn)}</svg>\n'
    )


_SCALE = WIDTH - LABEL - ROOM
"""Pixels for the rate of the floor."""


def _bar(title: str, share: float, color: str, top: int) -> str:
    middle, long = top + BAR - 5, max(1.0, share * _SCALE)
    return (
        f'<text x="{LABEL - 8}" y="{middle}" text-anchor="end">{escape(title)}</text>'
        f'<rect x="{LABEL}" y="{top}" width="{long:.1f}" height="{BAR}" rx="2" fill="{color}"/>'
        f'<text x="{LABEL + long + 6:.1f}" y="{middle}">{share:.2f}</text>'
    )


def _measured(known: Mapping[str, list[Table]]) -> Iterator[tuple[Measure, Table]]:
    """Yield the measures of rates that the page has; a peer of a later run is added to the first run's table."""
    for measure in MEASURES:
        runs = known.get(measure.title.casefold(), [])
        known_share = bool(runs) and bool(runs[0].get(OURS, {}).get("of the floor"))
        if known_share and measure.trial in (Trial.PAIRS, Trial.HANDOVER) and not measure.disturbed:
            later = {title: row | {LATER: "†"} for run in runs[1:] for title, row in run.items()}
            yield measure, later | runs[0]


def _line(measure: Measure, table: Table) -> str:
    peers = ", ".join(f"{table[peer]['ours is']} {peer}{table[peer].get(LATER, '')}" for peer in _shown(table)) or "–"
    ours = table[OURS]
    return f"| {_title(measure)} | {ours['per second']} | {_share(ours):.2f} | {peers} |"


def _shown(table: Table, named: Sequence[str] = NAMED) -> list[str]:
    """Return the peers that are named, the fastest of the others last."""
    peers = {
        title: float(row["ours is"].split()[0])
        for title, row in table.items()
        if title != OURS and not title.startswith("floor") and row["ours is"]
    }
    fastest = min((title for title in peers if title not in named), key=peers.__getitem__, default="")
    return [title for title in (*named, fastest) if title in peers]


def _costs(known: Mapping[str, list[Table]]) -> Iterator[str]:
    """Yield sentences about processor time and memory, of what was measured."""
    pairs = [(one, table[OURS]) for one, table in _measured(known) if one.trial is Trial.PAIRS and one.key[-2:] == "-1"]
    shown = "; ".join(f"{_store(one)} {_pair(row)}" for one, row in pairs if "asyncio" not in one.key)
    if shown:
        yield f"Acquire and release by one thread, µs of processor time of client + server: {shown}."
    for key in ("handover-2", "handover-10"):
        if row := _row(known, key, OURS):
            floor = _row(known, key, "floor: BLPOP token")
            yield f"{_title_of(key)}: {_pair(row)}; its floor {_pair(floor)}."
    for key in ("held-10000", "waiting-10000"):
        if row := _row(known, key, OURS):
            client, server = (row[f"{who} core"].replace("%", " %") for who in ("client", "server"))
            yield (
                f"{_title_of(key)}: {client} of one core in the client, {server} in the server; each takes "
                f"{row['client KiB each']} KiB in the client and {row['server bytes each']} bytes in the server."
            )
    for what in ("killed", "stalled"):
        if row := _row(known, "redlock-failing-blocking", f"{OURS}, one of five {what}"):
            yield f"Redlock with one of five servers {what}: {_share(row):.2f} of the rate with all."


def _store(measure: Measure) -> str:
    return "Redis" if measure.place is StoreKind.REDIS else measure.title.partition(",")[0]


def _pair(row: Mapping[str, str]) -> str:
    server, requests = row["server µs"], row["reads"]
    times = f"{float(row['client µs']):,.0f}" + (f" + {float(server):,.0f}" if server != "–" else "")
    return times + (f" in {float(requests):.0f} requests" if requests != "–" else "")


def _row(known: Mapping[str, list[Table]], key: str, contestant: str) -> dict[str, str]:
    runs = known.get(_title_of(key).casefold(), [])
    return runs[0].get(contestant, {}) if runs else {}


def _title_of(key: str) -> str:
    return next(_title(measure) for measure in MEASURES if measure.key == key)


def _title(measure: Measure) -> str:
    return f"{measure.title[0].upper()}{measure.title[1:]}"


def _share(row: Mapping[str, str]) -> float:
    return float(row["of the floor"].split()[0])


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]
