"""The catalogue of mutants: small mistakes in the shipped code, each with the tests that must find it.

A file of TOML in this folder is one part of the code. An entry says what the mistake is, which file it is
made in, the text that is there, what stands there instead, and which tests kill it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
TESTS = HERE.parent
TOP = TESTS.parent
PACKAGES = (TOP / "src" / "leasehold", TOP / "lab" / "src" / "leasehold_lab")


class PatchError(Exception):
    """A patch does not fit the code any more; the message says which."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mistake.

    Attributes:
        name: its name on the command line.
        says: what is wrong with it, in words.
        file: where it is made, below the package ``leasehold``, or with ``leasehold_lab/`` before it in the laboratory.
        old: the text that is there, exactly once.
        new: what stands there instead.
        killed_by: tests that find it, as pytest is told them, below ``tests/``; the first that fails is enough.
        day: whether it is one of the sample that runs by day.

    """

    name: str
    says: str
    file: str
    old: str
    new: str
    killed_by: tuple[str, ...]
    day: bool = False

    def path(self, packages: Sequence[Path]) -> Path:
        """Return the file among these packages: leasehold, and its laboratory."""
        top, _, below = self.file.partition("/")
        leasehold, lab = packages
        return lab / below if top == lab.name else leasehold / self.file

    def patched(self, packages: Sequence[Path]) -> str:
        """Return the text of the file with the mistake in it.

        Raises:
            PatchError: the text is not there, or not once, or nothing would change.

        """
        path = self.path(packages)
        if not path.is_file():
            raise PatchError(f"{self.name}: there is no {self.file}")
        text = path.read_text(encoding="utf-8")
        if (count := text.count(self.old)) != 1:
            raise PatchError(f"{self.name}: its text stands in {self.file} {count} times, not once")
        if self.old == self.new:
            raise PatchError(f"{self.name}: it changes nothing")
        return text.replace(self.old, self.new)

    def apply(self, packages: Sequence[Path]) -> None:
        """Make the mistake in copies of the packages; errors as `patched`."""
        self.path(packages).write_text(self.patched(packages), encoding="utf-8")


def catalogue() -> tuple[Mutant, ...]:
    """Return all mutants, part by part."""
    found: dict[str, Mutant] = {}
    for path in sorted(HERE.glob("*.toml")):
        for name, facts in tomllib.loads(path.read_text(encoding="utf-8")).items():
            if name in found:
                raise PatchError(f"{path.name}: there are two mutants called {name}")
            found[name] = Mutant(
                name,
                facts["says"],
                facts["file"],
                facts["old"].strip("\n"),
                facts["new"].strip("\n"),
                tuple(facts["killed_by"]),
                facts.get("day", False),
            )
    return tuple(found.values())


def chosen(names: Sequence[str], *, day: bool) -> tuple[Mutant, ...]:
    """Return the mutants of these names, or all, or the sample.

    Raises:
        PatchError: there is none of that name.

    """
    known = {mutant.name: mutant for mutant in catalogue()}
    for name in names:
        if name not in known:
            raise PatchError(f"there is no mutant {name}; see --list")
    if names:
        return tuple(known[name] for name in names)
    return tuple(mutant for mutant in known.values() if mutant.day or not day)
