"""Builds the programs that are written in other languages. Skips a program whose tools are not installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from leasehold_lab.bench.foreign import FOREIGN, HOW


def main() -> int:
    """Build all programs; return 0, or 1 if a build failed, or 2 if no existing folder was given."""
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        print(f"usage: {HOW} FOLDER (an existing folder, such as peers/bin)", file=sys.stderr)
        return 2
    folder, failed = Path(sys.argv[1]).resolve(), False
    for one in FOREIGN.values():
        absent = [tool for tool in one.tools if shutil.which(tool) is None]
        if absent:
            print(f"{one.key}: left out, not installed: {' and '.join(absent)}")
            continue
        try:
            with tempfile.TemporaryDirectory(prefix="leasehold-bench-") as place:
                sources = Path(shutil.copytree(one.sources, Path(place) / one.key))
                BUILD[one.key](sources, one.program(folder))
        except subprocess.CalledProcessError as error:
            print(f"{one.key}: {error}", file=sys.stderr)
            failed = True
        else:
            print(f"{one.key}: {one.program(folder)}")
    return int(failed)


def _maven(sources: Path, program: Path) -> None:
    """Build a jar, copy it and the jars that it needs into one folder, and write a script that starts it."""
    command = ["mvn", "--quiet", "--batch-mode", "package", "dependency:copy-dependencies"]
    subprocess.run([*command, "-DoutputDirectory=target/jars"], cwd=sources, check=True)
    jars = program.with_name(f"{program.name}-jars")
    shutil.rmtree(jars, ignore_errors=True)
    shutil.copytree(sources / "target" / "jars", jars)
    for jar in (sources / "target").glob("*.jar"):
        shutil.copy(jar, jars)
    program.write_text(f"#!/bin/sh\nexec java -cp '{jars}/*' Worker\n")
    program.chmod(0o755)


def _go(sources: Path, program: Path) -> None:
    subprocess.run(["go", "build", "-o", str(program), "."], cwd=sources, check=True)


BUILD: dict[str, Callable[[Path, Path], None]] = {"redisson": _maven, "redsync": _go}
"""The functions that build each program from a copy of its sources."""

if __name__ == "__main__":
    sys.exit(main())
