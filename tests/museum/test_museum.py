"""Every known defect of the museum, done to our own lock in both flavors, and with ``--peers`` to others."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from museum.catalogue import EXHIBITS, Exhibit, Verdict, reason, run_scenario
from museum.port import Place, Variant
from museum.visit import PEERS, Report, visit

from leasehold_lab.servers import RedisServer, ZooKeeperServer
from museum import page, scenarios  # noqa: F401 - puts them on show

PAGE = Path(__file__).parents[2] / "docs" / "museum.md"
FLAVORS = ["blocking", "asyncio"]
OURS = {"ours": "leasehold", "ours_zookeeper": "leasehold on ZooKeeper"}


def variant(module: str, flavor: str) -> Variant:
    found: Variant = import_module(f"museum.subjects.{module}").VARIANTS[flavor]
    return found


def shown() -> Iterator[Any]:
    """Each of ours in each scenario that applies; on ZooKeeper, asyncio repeats by night what blocking does by day."""
    for module in OURS:
        for exhibit in EXHIBITS.values():
            flavors = [flavor for flavor in FLAVORS if not reason(exhibit, flavor, variant(module, flavor))]
            for flavor in flavors:
                long = module == "ours_zookeeper" and flavor != flavors[0]
                marks = [pytest.mark.nightly] if long else []
                yield pytest.param(module, exhibit, flavor, id=f"{module}-{exhibit.id}-{flavor}", marks=marks)


@pytest.mark.parametrize(("module", "exhibit", "flavor"), list(shown()))
def test_ours_is_sound(
    module: str, exhibit: Exhibit, flavor: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    port = request.getfixturevalue(f"{variant(module, flavor).backend}_server").port
    seen = run_scenario(exhibit, module, flavor, Place(port, str(tmp_path)))
    assert seen.verdict in (Verdict.SOUND, Verdict.NOT_APPLICABLE), seen.words


def test_every_scenario_applies_to_us() -> None:
    """None is passed by being left out in both flavors."""
    for exhibit in EXHIBITS.values():
        assert any(not reason(exhibit, flavor, variant(module, flavor)) for module in OURS for flavor in FLAVORS)


def test_the_page_has_a_row_for_each_scenario_and_says_that_ours_are_sound() -> None:
    text = PAGE.read_text(encoding="utf-8")
    columns = page.read(text)
    words = " ".join(text.split())
    assert len(columns) > 2
    for head, signs in columns.items():
        assert list(signs) == list(EXHIBITS), head
        if head.startswith("leasehold"):
            assert set(signs.values()) <= {"✓", "·"}
    for exhibit in EXHIBITS.values():
        assert exhibit.what in words, f"the page is older than {exhibit.id}: write it anew"


@pytest.mark.timeout(600)
def test_peers_do_what_the_page_says(
    interpreters: list[str],
    pytestconfig: pytest.Config,
    redis_server: RedisServer,
    zookeeper_server: ZooKeeperServer,
    tmp_path: Path,
) -> None:
    """Compared are the columns of the versions that are installed; with ``--write-museum`` the page is written."""
    ports = {"redis": redis_server.port, "zookeeper": zookeeper_server.port}
    with ThreadPoolExecutor(3) as pool:
        reports = list(pool.map(lambda peer: visit(*peer, interpreters, ports), PEERS.items()))
    for report in reports:
        if not report.version:
            print(f"LEFT OUT: {report.title}: {report.missing}")
    columns = [column for report in reports for column in columns_of(report)]
    assert columns, "none of the libraries is installed there"
    if pytestconfig.getoption("--write-museum"):
        PAGE.write_text(page.written([*ours(ports, tmp_path), *columns]), encoding="utf-8")
    assert not [(report.title, report.errors) for report in reports if report.errors]
    known = page.read(PAGE.read_text(encoding="utf-8"))
    for column in columns:
        signs = known.get(f"{column.title}<br>{column.version}", {})
        for name, sign in signs.items():
            if (column.title, name) in page.VARYING:
                continue
            assert page.SIGNS[column.seen[name].verdict] == sign, f"{column.title}, {name}: {column.seen[name].words}"


def columns_of(report: Report) -> list[page.Column]:
    columns: dict[str, page.Column] = {}
    for (flavor, name), seen in report.seen.items():
        column = columns.setdefault(flavor, page.Column(f"{report.title} {flavor}", report.version))
        column.seen[name] = seen
    return list(columns.values())


def ours(ports: dict[str, int], folder: Path) -> list[page.Column]:
    columns = []
    for module, title in OURS.items():
        for flavor in FLAVORS:
            place = Place(ports[variant(module, flavor).backend], str(folder))
            seen = {name: run_scenario(exhibit, module, flavor, place) for name, exhibit in EXHIBITS.items()}
            columns.append(page.Column(f"{title} {flavor}", version("leasehold"), seen))
    return columns
