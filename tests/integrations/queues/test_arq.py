"""Jobs of arq under locks, in an environment of its own, which needs a package index: arq pins an old redis-py."""

from __future__ import annotations

import subprocess
import venv
from pathlib import Path

import pytest
from queue_workers import all_that_is_promised, workers_of

TOP = Path(__file__).parents[3]


@pytest.mark.nightly  # it installs packages
@pytest.mark.timeout(300)
def test_jobs_of_arq_with_one_name_run_one_at_a_time(tmp_path: Path) -> None:
    with workers_of("arq", tmp_path, str(environment(tmp_path / "env"))) as workers:
        all_that_is_promised(workers)


def environment(folder: Path) -> Path:
    """Make an environment with arq and the sources of the repository; return its interpreter."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    pip = (str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install")
    subprocess.run([*pip, "arq>=0.26", "hiredis>=3.2,<4"], check=True, timeout=200, stdin=subprocess.DEVNULL)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    places = TOP / "src", TOP / "lab" / "src", TOP / "tests"
    (packages / "repository.pth").write_text("\n".join(map(str, places)))
    return python
