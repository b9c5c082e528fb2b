"""The lowest version of each framework that an extra allows; the tests' own environment has the highest."""

from __future__ import annotations

import os
import subprocess
import venv
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]

LOWEST = {
    "alembic": (
        ["alembic==1.13.0", "sqlalchemy==2.0.0"],
        ["integrations/alembic", "integrations/sqlalchemy"],
    ),
    "celery": (
        # with the drivers and the broker library of its time
        ["celery==5.3.0", "kombu==5.3.0", "redis==5.1.*", "django-celery-beat==2.6.0"],
        ["integrations/celery"],
    ),
    "django": (
        ["django==4.2"],
        ["integrations/django"],
    ),
    "fastapi": (
        ["fastapi==0.121.0", "starlette==0.40.0"],
        ["integrations/fastapi"],
    ),
    "metrics": (
        ["prometheus-client==0.20.0", "opentelemetry-sdk==1.30.0"],
        ["integrations/metrics/test_prometheus.py", "integrations/metrics/test_opentelemetry.py"],
    ),
    "queues": (
        [
            *("apscheduler==3.10.0", "dramatiq==1.17.0", "taskiq==0.11.17", "taskiq-redis==0.5.6", "rq==2.1.0"),
            *("huey==2.5.0", "dogpile.cache==1.3.0", "redis==5.3.1"),
        ],
        ["integrations/apscheduler", "integrations/queues", "integrations/dogpile"],
    ),
    "top": (
        ["textual==2.0.0"],
        ["integrations/top"],
    ),
    "ui": (
        # with a FastAPI of its time, in which tests mount it
        ["starlette==0.40.0", "uvicorn==0.30.0", "fastapi==0.115.3"],
        ["integrations/ui"],
    ),
}
"""By extra, or by folder for several: what is installed in a new environment, and the tests that run in it."""


@pytest.mark.nightly
@pytest.mark.timeout(1000)
@pytest.mark.parametrize(("packages", "tests"), LOWEST.values(), ids=LOWEST)
def test_the_lowest_version_works(packages: list[str], tests: list[str], tmp_path: Path) -> None:
    python = environment(tmp_path, packages)
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    quiet = ("-q", "-p", "no:cacheprovider", "--no-header", "-W", "default")  # old versions warn
    run(str(python), "-m", "pytest", *quiet, *tests, cwd=TOP / "tests", env=env, within=900)


def environment(folder: Path, packages: list[str]) -> Path:
    """Make an environment with these packages, the sources of the repository, and all else of the tests' own."""
    venv.create(folder / "env", with_pip=True)
    python = folder / "env" / "bin" / "python"
    run(str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install", *packages, within=300)
    (installed,) = (folder / "env" / "lib").glob("python*/site-packages")
    places = TOP / "src", TOP / "lab" / "src", Path(pytest.__file__).parents[1]
    (installed / "tests.pth").write_text("\n".join(map(str, places)))
    for project, _, version in (package.partition("==") for package in packages if "*" not in package):
        run(
            str(python),
            "-c",
            f"import importlib.metadata; assert importlib.metadata.version({project!r}) == {version!r}",
            within=60,
        )
    return python


def run(*command: str, within: float, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    """Run a program; fail with all its output if it fails."""
    done = subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=within, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
