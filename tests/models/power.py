"""How soon histories of some length find locks that are broken on purpose, in seconds of a processor."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from models.broken import MISTAKES
from models.history import run
from models.running import in_processes
from models.scenario import SIZE, Size

SIZES: Mapping[str, Size] = {
    f"{size.least}-{size.most}": size for size in (Size(4, 10, 6.0), SIZE, Size(1, 3, 2.0), Size(1, 2, 1.5))
}
"""What is compared: the size that tests play, a longer one, and shorter ones, by how many operations they have."""


@dataclass(frozen=True, slots=True)
class Power:
    """How often one size found one mistake."""

    mistake: str
    size: str
    histories: int
    found: int
    seconds: float

    @property
    def each(self) -> float:
        """Seconds of a processor for each history that showed it."""
        return self.seconds / self.found if self.found else float("inf")

    def __str__(self) -> str:
        often = f"{self.found} of {self.histories} histories"
        return f"{self.mistake:<40} {self.size:<5} {self.each:7.2f} s each  {often}"


def measure(seconds: float, jobs: int) -> Iterator[Power]:
    """Play histories of each size against each mistake, for so many seconds of a processor each."""
    yield from in_processes(_piece, [(mistake, size, seconds) for mistake in MISTAKES for size in SIZES], jobs)


def _piece(piece: tuple[str, str, float]) -> Power:
    which, size, seconds = piece
    mistake, first = MISTAKES[which], random.Random(f"{which}/{size}").getrandbits(32)
    run(first, mistake.system, mistake.spoilt)  # what is made once is made by now
    histories = found = 0
    begin = time.process_time()
    while (passed := time.process_time() - begin) < seconds:
        histories += 1
        found += mistake.shown_by(run(first + histories, mistake.system, mistake.spoilt, SIZES[size]))
    return Power(which, size, histories, found, passed)
