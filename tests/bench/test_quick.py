"""No path has become slower: the ratios of a quick run beside those that are committed, and the command for both."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from leasehold_lab.bench import quick
from leasehold_lab.bench.contestants import CONTESTANTS
from leasehold_lab.bench.places import StoreKind
from leasehold_lab.bench.result import Row, Spread
from leasehold_lab.bench.run import run, takes_part
from leasehold_lab.commands.bench import bench

TRIES = 3


class Quiet:
    """Shows no progress."""

    def trial_begins(self, *trial: object) -> None: ...

    def row_ends(self, row: Row) -> None: ...


@pytest.mark.timing(beside="nobody")
@pytest.mark.flaky(reruns=0)  # it tries again itself, and reports all tries
@pytest.mark.timeout(300)
@pytest.mark.parametrize("key", quick.QUICK)
def test_no_ratio_has_fallen(key: str) -> None:
    """After a change that is meant to cost this much: ``leasehold bench --quick --write``, on a calm machine."""
    tries, below = list[str](), set[tuple[str, str]]()
    for number in range(TRIES):
        result = run(quick.settings(only=[key]), Quiet())
        assert result.sound, result.as_json()
        found = quick.ratios(result)
        tries.append(quick.text(found))
        fallen = quick.fallen(found, [key])
        below = below & fallen if number else fallen
        if not below:
            return
    shown = "\n".join(tries)
    pytest.fail(f"lower than committed by more than {quick.DROP:.0%} in {TRIES} tries:\n{shown}", pytrace=False)


def test_each_measure_has_its_floor_and_a_committed_ratio() -> None:
    measures = quick.settings().measures()
    assert [measure.key for measure in measures] == list(quick.QUICK)
    assert all(measure.floor in quick.QUICK[measure.key] for measure in measures)
    assert {measure.place for measure in measures} == {StoreKind.REDIS, StoreKind.FILE}, "needs no server but Redis"
    assert {key: tuple(of) for key, of in quick.committed().items()} == quick.QUICK


def test_only_what_is_compared_is_measured() -> None:
    settings = quick.settings()
    for measure in settings.measures():
        taking = {one.key for one in CONTESTANTS if settings.includes(one, measure)}
        assert taking == {"leasehold", *quick.QUICK[measure.key]}
        assert all(takes_part(one, measure) for one in CONTESTANTS if one.key in taking)


def test_the_measures_are_those_of_the_store() -> None:
    assert [one.key for one in quick.settings("sqlite:/x/locks.db").measures()] == ["sqlite-1"]
    assert [one.key for one in quick.settings("redis://h", ["blocking"]).measures()] == ["blocking-1"]
    with pytest.raises(ValueError, match="known measures: blocking-1, asyncio-1"):
        quick.settings("redis://h", ["sqlite"])
    with pytest.raises(ValueError, match="none on this store"):
        quick.settings("etcd://h")


def test_a_ratio_falls_by_more_than_a_quarter_or_if_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quick, "RATIOS", tmp_path / "ratios.json")
    quick.RATIOS.write_text('{"handover-2": {"floor-token": 0.5}, "sqlite-1": {"floor-sqlite": 0.4}}')

    def fallen(**medians: float) -> set[tuple[str, str]]:
        ratios = {"handover-2": {key.replace("_", "-"): Spread(value, value, value) for key, value in medians.items()}}
        return quick.fallen(ratios, ["handover-2"])

    assert fallen(floor_token=0.38) == set()
    assert fallen(floor_token=0.37) == fallen() == {("handover-2", "floor-token")}


def test_the_command_shows_and_commits_ratios(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick, "RATIOS", tmp_path / "ratios.json")
    quick.RATIOS.write_text('{"sqlite-1": {"floor-sqlite": 99}, "handover-2": {"floor-token": 0.4}}')
    monkeypatch.setattr("leasehold_lab.commands.bench.end_on_signals", lambda: None)
    words = ["--quick", "--only", "sqlite", "--seconds", "0.02", "--rounds", "1"]
    shown = CliRunner().invoke(bench, words)
    assert shown.exit_code == 0, shown.output
    assert "SQLite file, acquire + release, 1 thread, of the floor" in shown.stdout
    assert shown.stdout.split()[-1] == "99"
    assert CliRunner().invoke(bench, [*words, "--write"]).exit_code == 0
    kept = json.loads(quick.RATIOS.read_text())
    assert list(kept) == ["handover-2", "sqlite-1"]
    assert 0 < kept["sqlite-1"]["floor-sqlite"] < 99
    assert kept["handover-2"] == {"floor-token": 0.4}


@pytest.mark.parametrize("words", [["--write"], ["--quick", "--full"], ["--quick", "--only", "etcd"]])
def test_options_that_do_not_fit_are_usage_errors(words: list[str]) -> None:
    assert CliRunner().invoke(bench, words).exit_code in (2, 64)


def test_the_result_is_printed_before_files_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasehold_lab.commands.bench.end_on_signals", lambda: None)
    words = ["--only", "sqlite-1", "--seconds", "0.02", "--rounds", "1"]
    for more in ["--report", "/dev/full"], ["--json", "--report", "/dev/full"]:
        done = CliRunner().invoke(bench, [*words, *more])
        assert isinstance(done.exception, OSError)
        assert "SQLite file" in done.stdout
