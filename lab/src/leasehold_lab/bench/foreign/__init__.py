"""Libraries of other languages: a program of each speaks with the bench as a worker does; its own tools build it.

They lie beside the interpreter of the peers' environment, since they belong to it as what is installed there does:

    python -m leasehold_lab.bench.foreign peers/bin
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HOW = "python -m leasehold_lab.bench.foreign"
"""What builds the programs; it takes the folder."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """A program.

    Attributes:
        key: of the contestant, and the folder of its sources here.
        language: for people.
        tools: the commands that must be there to build and run it.

    """

    key: str
    language: str
    tools: Sequence[str]

    @property
    def sources(self) -> Path:
        """The folder of its sources."""
        return Path(__file__).parent / self.key

    def program(self, folder: Path) -> Path:
        """Return where it lies in the folder of programs."""
        return folder / f"leasehold-bench-{self.key}"

    def missing(self, folder: Path) -> str:
        """Say why it cannot be measured; empty if it can."""
        if self.program(folder).exists():
            return ""
        return f"a library of {self.language}, not built; where there is {' and '.join(self.tools)}: {HOW} {folder}"


FOREIGN = {
    one.key: one
    for one in (
        Foreign("redisson", "Java", ("java", "mvn")),
        Foreign("redsync", "Go", ("go",)),
    )
}
"""By the key of the contestant."""
