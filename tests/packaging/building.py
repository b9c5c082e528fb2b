"""How the distributions are built, and how a program of the tests is run."""

from __future__ import annotations

import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).parents[2]
LAB = TOP / "lab"
"""The second distribution, leasehold-lab: built and installed, too, where the repository has it."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """The wheel and the source archive of one project."""

    wheel: Path
    sdist: Path


def built(project: Path, out: Path) -> Distribution:
    """Build the source archive from the tree, and the wheel from the source archive, as for a release.

    It uses the build backend of the tests' own environment, so it needs no network.
    """
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(project))
    (wheel,) = out.glob("*.whl")
    (sdist,) = out.glob("*.tar.gz")
    return Distribution(wheel, sdist)


def environment(folder: Path, *wanted: str, offline: bool = False) -> Path:
    """Make a virtual environment with these packages, and return its Python.

    The tests' own pip installs them: to install pip takes longer than all else.
    """
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    pip(python, "install", *(["--no-index"] if offline else []), *wanted)
    return python


def pip(python: Path, *words: str) -> str:
    """Run pip on the environment of this Python."""
    return run(sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "--quiet", *words)


def run(*command: str, cwd: Path | None = None, env: dict[str, str] | None = None, within: float = 100.0) -> str:
    """Run a program and return what it printed; fail with all its output if it fails."""
    done = subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=within, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout
