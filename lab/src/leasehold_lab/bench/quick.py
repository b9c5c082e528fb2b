"""A small run whose ratios are kept: ``leasehold bench --quick`` takes less than a minute, and needs only Redis.

A ratio is the median over rounds in which leasehold and the contestant run one after the other. A test compares it with
``ratios.json``, so that a change which makes a path slower is noticed.

Ratios to a floor differ from machine to machine: a floor is mostly system calls, which are twice as fast, relative to
Python, on some machines. So the committed ratios are the lowest of calm machines of several kinds. The ratio to
redis-py, where it is measured, is more sensitive. ``leasehold bench --quick --write`` commits those of this machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from leasehold_lab.bench.contestants import OURS, by_key
from leasehold_lab.bench.measures import MEASURES, Measure
from leasehold_lab.bench.places import StoreKind, store_kind_of
from leasehold_lab.bench.report.table import ratio
from leasehold_lab.bench.result import Result, Spread
from leasehold_lab.bench.run import Settings

PEER = "redis-py"
"""The one library that is measured in addition to the floors: most programs use it today."""

QUICK: Mapping[str, Sequence[str]] = {
    "blocking-1": ("floor-scripts", PEER),
    "asyncio-1": ("floor-scripts", PEER),
    "asyncio-100": ("floor-scripts",),
    "handover-2": ("floor-token",),
    "sqlite-1": ("floor-sqlite",),
}
"""The measures, each with the contestants that leasehold is compared with."""

SECONDS, ROUNDS = 0.2, 9

DROP = 0.25
"""A ratio that is lower than the committed one by more than this fraction has fallen."""

RATIOS = Path(__file__).with_name("ratios.json")
"""The committed ratios: by measure and contestant."""

Ratios = dict[str, dict[str, Spread]]


def settings(
    url: str | None = None, only: Sequence[str] = (), seconds: float = SECONDS, rounds: int = ROUNDS
) -> Settings:
    """Return the settings of a quick run.

    Raises:
        ValueError: none of the measures is of the store at the URL, or has such a key.

    """
    place = store_kind_of(url) if url else None
    offered = [one for one in _measures() if place in (None, one.place)]
    keys = [one.key for one in offered if not only or any(map(one.is_called, only))]
    if not keys:
        known = ", ".join(one.key for one in offered) or "none on this store"
        raise ValueError(f"--quick has no such measure; known measures: {known}")
    return Settings(url, seconds, rounds, keys, among={key: (OURS.key, *QUICK[key]) for key in keys})


def ratios(result: Result) -> Ratios:
    """Return the ratios of a run; those of a trial that failed are left out."""
    found: Ratios = {}
    for row in result.rows:
        for entry in row.entries:
            if row.ours is not None and entry.contestant.key in QUICK[row.measure.key]:
                spread = row.ours.ratio(entry)
                if spread is not None:
                    found.setdefault(row.measure.key, {})[entry.contestant.key] = spread
    return found


def committed() -> dict[str, dict[str, float]]:
    """Return the committed ratios."""
    found: dict[str, dict[str, float]] = json.loads(RATIOS.read_text(encoding="utf-8"))
    return found


def write(found: Ratios) -> None:
    """Write the committed ratios; keep those of measures that this run does not have."""
    kept = committed() | {
        key: {one: round(spread.median, 3) for one, spread in of.items()} for key, of in found.items()
    }
    ordered = {key: kept[key] for key in QUICK if key in kept}
    RATIOS.write_text(json.dumps(ordered, indent=2) + "\n", encoding="utf-8")


def fallen(found: Ratios, keys: Sequence[str]) -> set[tuple[str, str]]:
    """Return measure and contestant of each ratio of these measures that has fallen; a failed trial counts as that."""
    least = {
        (key, one): kept * (1 - DROP) for key, of in committed().items() if key in keys for one, kept in of.items()
    }
    medians = {(key, one): spread.median for key, of in found.items() for one, spread in of.items()}
    return {which for which, floor in least.items() if medians.get(which, 0.0) < floor}


def text(found: Ratios) -> str:
    """Return the ratios and the committed ones, as a table."""
    kept = committed()
    lines = [("", "now", "lowest to highest", "committed")]
    for measure in _measures():
        for one, spread in found.get(measure.key, {}).items():
            unit = f"× {by_key(one).title}" if one == PEER else "of the floor"
            place = "Redis, " if measure.place is StoreKind.REDIS else ""
            spread_shown = f"{ratio(spread.least)} to {ratio(spread.most)}"
            before = kept.get(measure.key, {}).get(one)
            shown = "–" if before is None else ratio(before)
            lines.append((f"{place}{measure.title}, {unit}", ratio(spread.median), spread_shown, shown))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True))])
        for line in lines
    )


def _measures() -> list[Measure]:
    return [measure for measure in MEASURES if measure.key in QUICK]
