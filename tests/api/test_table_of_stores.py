"""The table of docs/backends/README.md says which primitive works on which store: each cell is tried by making it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from leasehold import Client, Unsupported

PAGE = Path(__file__).parents[2] / "docs" / "backends" / "README.md"

COLUMNS = (
    (
        *("sqlite:locks.db", "redis://h", "redis+sentinel://h/main", "redis+cluster://h", "redis://h?strict=true"),
        *("postgresql://u:p@h/d", "mysql://u:p@h/d", "memory:"),
    ),
    ("zookeeper://h/x", "etcd://h"),
    ("postgresql://u:p@h/d?mode=session",),
    ("mysql://u:p@h/d?mode=session",),
    ("redlock://h1,h2,h3",),
    ("hazelcast://h/dev",),
)
"""The stores of each column. Nothing connects."""

PLAIN: dict[str, Callable[..., Any]] = {
    "lock": lambda locks, **options: locks.lock("x", **options),
    "rlock": lambda locks, **options: locks.rlock("x", **options),
    "multi_lock": lambda locks, **options: locks.multi_lock(["x", "y"], **options),
    "synchronized": lambda locks, **options: locks.synchronized("x", **options)(print_it),
}

OTHERS: dict[str, Callable[[Client], Any]] = {
    "election": lambda locks: locks.election("x"),
    "versioned": lambda locks: locks.versioned("x"),
    "latch": lambda locks: locks.latch("x", 2),
    "once": lambda locks: locks.once("x", ttl=60),
    "cached": lambda locks: locks.cached("x", 60, dict),
    "scheduled": lambda locks: locks.scheduled("x", at_most=60),
    "rw_lock": lambda locks: locks.rw_lock("x").reader(),
    "semaphore": lambda locks: locks.semaphore("x", 3),
    "barrier": lambda locks: locks.barrier("x", 2),
}

OPTIONS: dict[str, dict[str, Any]] = {
    "fair": {"fair": True},
    "lock_delay": {"lock_delay": 5.0},
    "meta": {"meta": {"job": "x"}},
}


def print_it() -> None:
    """Stand for a function that is synchronized."""


def cells() -> Iterator[Any]:
    """Return the cells of the table: the row's words, the stores of the column, and whether the page says yes."""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        head, *row = [cell.strip() for cell in line.strip("|").split("|")]
        if re.match(r"(their option )?`", head) and len(row) == len(COLUMNS):
            for urls, cell in zip(COLUMNS, row, strict=True):
                for url in urls:
                    yield pytest.param(head, url, {"yes": True, "–": False}[cell], id=f"{head[:30]}-{url}")


def makers(head: str) -> Iterator[Callable[[Client], Any]]:
    words = re.findall(r"`(\w+)", head)
    if head.startswith("their option"):
        (option,) = words
        for make in PLAIN.values():
            yield lambda locks, make=make: make(locks, **OPTIONS[option])
    else:
        for word in words:
            yield PLAIN.get(word) or OTHERS[word]


def test_the_table_has_all_primitives() -> None:
    heads = {param.values[0] for param in cells()}
    words = {word for head in heads for word in re.findall(r"`(\w+)", head)}
    assert words == {*PLAIN, *OTHERS, *OPTIONS}


@pytest.mark.parametrize(("head", "url", "works"), list(cells()))
def test_a_cell_is_what_making_the_object_says(
    head: str, url: str, works: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Client.from_url(url) as locks:
        for make in makers(head):
            if works:
                make(locks)
            else:
                with pytest.raises(Unsupported):
                    make(locks)
