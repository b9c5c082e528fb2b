"""Each example runs on two stores with its real processes, and its judge sees a broken promise."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import leasehold
from leasehold_lab.servers import RedisServer

FOLDER = Path(__file__).parents[2] / "examples"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in ("side_by_side", "example_store"))


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    request.node.user_properties.append((f"store:{request.param}", True))
    if request.param == "sqlite":
        return f"sqlite:{tmp_path}/locks.db"
    server: RedisServer = request.getfixturevalue("redis_server")
    return server.url


@pytest.mark.parametrize("name", NAMES)
def test_the_example_keeps_its_promise(name: str, url: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(leasehold.__file__).parents[1])}
    command = [sys.executable, str(FOLDER / f"{name}.py"), "--url", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment, check=False)
    said = f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
    assert done.returncode == 0, said
    assert "\nkept: " in done.stdout, said
    assert "Traceback" not in done.stderr, said


def test_an_example_without_its_store_fails() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(leasehold.__file__).parents[1])}
    command = [sys.executable, str(FOLDER / "page_views.py"), "--url", "redis://127.0.0.1:1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment, check=False)
    assert done.returncode != 0
    assert "kept" not in done.stdout


@pytest.fixture
def example(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module(request.param)


def deliveries(charges: int) -> list[dict[str, Any]]:
    facts: list[dict[str, Any]] = []
    for message in range(10):
        facts += [{"charged": message, "consumer": 1}] * (charges if message == 3 else 1)
        facts += [{"acknowledged": message, "receipt": f"r{message}"}] * 4
    return facts


@pytest.mark.parametrize("example", ["duplicate_message"], indirect=True)
def test_a_second_charge_is_seen(example: ModuleType) -> None:
    assert example.judge(deliveries(1)) == []
    assert example.judge(deliveries(2)) == ["payment 3 was charged 2 times"]
    assert example.judge(deliveries(0)) == ["payment 3 was charged 0 times"]


@pytest.mark.parametrize("example", ["scheduled_mail"], indirect=True)
def test_a_second_mail_is_seen(example: ModuleType) -> None:
    good = [{"mail": tick, "instance": 1} for tick in (1, 2, 3)] + [{"tick": tick, "ran": True} for tick in (1, 2, 3)]
    assert example.judge(good) == []
    assert example.judge([*good, {"mail": 2, "instance": 4}]) == ["tick 2: 2 mails"]
    assert example.judge(good[1:]) == ["tick 1: 0 mails"]


@pytest.mark.parametrize("example", ["leader"], indirect=True)
def test_two_leaders_are_seen(example: ModuleType) -> None:
    def term(leader: int, token: int, *times: float) -> list[dict[str, Any]]:
        return [{"leader": leader, "token": token, "at": at} for at in times]

    good = term(1, 10, 0.0, 1.0) + term(2, 20, 2.0, 3.0) + term(3, 30, 3.1, 4.0)
    assert example.judge(good, 1.0) == []
    two = term(1, 10, 0.0, 2.5) + term(2, 20, 2.0, 3.0) + term(3, 30, 3.1, 4.0)
    assert any("at the same time" in line for line in example.judge(two, 1.0))
    late = term(1, 10, 0.0, 1.0) + term(2, 20, 9.0, 9.1) + term(3, 30, 9.2, 9.3)
    assert example.judge(late, 1.0) == ["nobody led for 8.00 s"]


@pytest.mark.parametrize("example", ["access_token"], indirect=True)
def test_a_stampede_is_seen(example: ModuleType) -> None:
    uses = [{"used": number, "age": 0.5} for number in (1, 2, 3, 4)]
    fetch = {"fetched": 1, "began": 0.0, "ended": 0.2}
    assert example.judge([*uses, fetch]) == []
    assert any("at the same time" in line for line in example.judge([*uses, fetch, {**fetch, "began": 0.1}]))
    assert example.judge([*uses, {"used": 1, "age": 1.6}, fetch]) == ["a token of 1.600 s was used"]
