"""Runs mutants: a copy of the package for each, the mistake in it, and the tests that must fail now."""

from __future__ import annotations

import enum
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from mutant_catalogue import PACKAGES, TESTS, Mutant, PatchError

WITHIN = 180.0
"""Seconds after which a run of tests is ended: they hang, and so they have found it."""

PYTEST = ("-x", "-q", "-rN", "--no-header", "-p", "no:cacheprovider", "--timeout", "60")
"""How tests are run."""

PASSED, FAILED = 0, 1
"""How pytest ends; all else is neither, as where a test does not exist."""


HEADING = re.compile(r"^_+ (.+?) _+$", re.MULTILINE)
"""Stands above a traceback."""


class Verdict(enum.StrEnum):
    """What became of a mutant."""

    KILLED = "killed"
    SURVIVED = "SURVIVED"  # the tests have a hole
    BROKEN = "BROKEN"  # the patch does not apply, or the tests did not run


@dataclass(frozen=True, slots=True)
class Run:
    """One mutant that was tried; ``said`` is the test that found it, or what went wrong."""

    mutant: Mutant
    verdict: Verdict
    seconds: float
    said: str

    def __str__(self) -> str:
        return f"{self.verdict:<8} {self.seconds:5.1f} s  {self.mutant.name}: {self.mutant.says}\n{'':19}{self.said}"


def run_all(mutants: Sequence[Mutant], jobs: int) -> Iterator[Run]:
    """Try mutants, so many at once; yield each as it ends. The work tree is never written to."""
    with tempfile.TemporaryDirectory(prefix="leasehold-mutants-") as folder, ThreadPoolExecutor(jobs) as pool:
        clean = _copy(PACKAGES, Path(folder) / "clean")
        _imported_from(clean)
        for done in as_completed([pool.submit(_run, mutant, clean, Path(folder)) for mutant in mutants]):
            yield done.result()


def control(mutants: Sequence[Mutant], jobs: int) -> str:
    """Run all the tests on a copy without a mistake; return the last lines of what failed, nothing if they pass."""
    tests = sorted({test for mutant in mutants for test in mutant.killed_by})
    with tempfile.TemporaryDirectory(prefix="leasehold-mutants-") as folder:
        clean = _copy(PACKAGES, Path(folder) / "clean")
        code, said = _pytest(clean, tests, 60.0 + 30.0 * len(tests), *(["-n", str(jobs)] if jobs > 1 else []))
    return "" if code == PASSED else "\n".join(said.splitlines()[-30:])


def _run(mutant: Mutant, clean: Path, folder: Path) -> Run:
    begin = time.monotonic()
    place = _copy(_packages(clean), folder / mutant.name)
    try:
        mutant.apply(_packages(place))
        code, said = _pytest(place, mutant.killed_by, WITHIN)
    except PatchError as error:
        return Run(mutant, Verdict.BROKEN, time.monotonic() - begin, str(error))
    finally:
        shutil.rmtree(place, ignore_errors=True)
    verdict = {PASSED: Verdict.SURVIVED, FAILED: Verdict.KILLED, None: Verdict.KILLED}.get(code, Verdict.BROKEN)
    if verdict is Verdict.KILLED and code == FAILED and not _failed(said):
        verdict = Verdict.BROKEN
    return Run(mutant, verdict, time.monotonic() - begin, _failed(said) or said.strip().rpartition("\n")[2])


def _failed(said: str) -> str:
    """Return the name of the test that failed, as the heading of its traceback has it."""
    found = HEADING.search(said)
    return found[1] if found else ""


def _copy(packages: Sequence[Path], place: Path) -> Path:
    for package in packages:
        shutil.copytree(package, place / package.name, ignore=shutil.ignore_patterns("*-pytest-*"))
    return place


def _packages(place: Path) -> list[Path]:
    return [place / package.name for package in PACKAGES]


def _environment(place: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1", "CI": ""}


def _imported_from(place: Path) -> None:
    """See to it that tests use the copy, and not the package as it is installed."""
    command = [sys.executable, "-c", "import leasehold; print(leasehold.__file__)"]
    done = subprocess.run(command, env=_environment(place), cwd=TESTS, capture_output=True, text=True, check=True)
    if not done.stdout.startswith(str(place)):
        raise PatchError(f"the package is imported from {done.stdout.strip()}, and not from the copy")


def _pytest(place: Path, tests: Sequence[str], within: float, *more: str) -> tuple[int | None, str]:
    """Run tests on a copy, up to the first that fails; return the exit code, None if it hung, and what was said.

    Those that are chosen by an expression (``-k``) run by themselves, after the others.
    """
    plain = [test for test in tests if " " not in test]
    code: int | None = PASSED
    said = ""
    for some in [*([plain] if plain else []), *(shlex.split(test) for test in tests if " " in test)]:
        code, said = _once(place, [*more, *some], within)
        if code != PASSED:
            break
    return code, said


def _once(place: Path, words: Sequence[str], within: float) -> tuple[int | None, str]:
    command = [sys.executable, "-m", "pytest", *PYTEST, *words]
    child = subprocess.Popen(
        command,
        env=_environment(place),
        cwd=TESTS,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = child.communicate(timeout=within)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, 9)  # with the servers that it started
        said, _ = child.communicate()
        return None, said + "\n____ it hung ____"
    return child.returncode, said
