"""Versions of the drivers that the tests' own environment does not have: the lowest of each, and redis-py 6 and 7.

That environment has the highest. Each of these has drivers of its own, and takes all else from that one.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from pathlib import Path

import pytest
from building import LAB, TOP, environment, run

EXTRAS: dict[str, list[str]] = tomllib.loads((TOP / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]
NAMES = "stores/test_driver_names.py"
ON_REDIS = (NAMES, "stores/redis/test_redis_setup.py", "stores/redis_deployments/test_redis_adopted.py")
ON_OTHERS = ("stores/mysql/test_mysql_adopting.py", "cli/test_cli_looking.py")

LOWEST = [
    re.sub(r">=([\d.]+),<\d[\d.]*$", r"==\1", each)
    for name in re.findall(r"[a-z]+", EXTRAS["all"][0].partition("[")[2])  # the frameworks have their own
    for each in EXTRAS[name]
]

WITHIN = 240.0
"""Seconds for the tests in one environment."""


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("drivers", "tests"),
    [
        pytest.param(LOWEST, (*ON_REDIS, *ON_OTHERS), id="lowest"),
        pytest.param(["redis==6.*"], ON_REDIS, id="redis 6", marks=pytest.mark.nightly),
        pytest.param(["redis==7.*"], ON_REDIS, id="redis 7", marks=pytest.mark.nightly),
    ],
)
def test_other_versions_of_the_drivers_work(drivers: list[str], tests: tuple[str, ...], tmp_path: Path) -> None:
    python = with_drivers(tmp_path, drivers)
    for name, version in (re.split(r"(?:\[\w+\])?==", each) for each in drivers):
        code = f"import importlib.metadata; print(importlib.metadata.version({name!r}))"
        assert (run(str(python), "-c", code).strip() + ".").startswith(version.rstrip("*").rstrip(".") + "."), name
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    options = ("-x", "-q", "-p", "no:cacheprovider", "--no-header")
    run(str(python), "-m", "pytest", *options, *tests, cwd=TOP / "tests", env=env, within=WITHIN)


def test_each_driver_has_a_lowest_version() -> None:
    assert all(re.fullmatch(r"[a-z0-9-]+(\[\w+\])?==[\d.]+", each) for each in LOWEST), LOWEST
    page = (TOP / "docs" / "decisions" / "README.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| ([\w-]+) \| ([\d.]+) \|", page, flags=re.MULTILINE))
    told = {name.lower().replace("redis-py", "redis"): version for name, version in rows.items()}
    assert told == dict(re.split(r"(?:\[\w+\])?==", each) for each in LOWEST)


@pytest.mark.parametrize("celery", ["5.4.0", "5.5.3"])
def test_the_redis_extra_fits_beside_celery(celery: str) -> None:
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    run(*pip, "install", "--dry-run", "--ignore-installed", f"celery[redis]=={celery}", *EXTRAS["redis"])


def with_drivers(folder: Path, drivers: list[str]) -> Path:
    """Make an environment with these drivers, the sources of the repository, and the packages of the tests."""
    python = environment(folder / "env", *drivers)
    (packages,) = (folder / "env" / "lib").glob("python*/site-packages")
    places = TOP / "src", LAB / "src", Path(pytest.__file__).parents[1]
    (packages / "tests.pth").write_text("\n".join(map(str, places)))
    return python
