"""The registered scenarios, their verdicts, and how a scenario runs on one lock."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import import_module

from museum.hall import Hall
from museum.port import Place, Variant

WITHIN = 20.0
"""Seconds that a scenario may take."""


class Verdict(enum.StrEnum):
    """What was observed."""

    SOUND = "sound"
    PARTLY = "partly"
    EXPOSED = "exposed"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True, slots=True)
class Seen:
    """What one lock did in one scenario: a verdict, and a sentence without its full stop."""

    verdict: Verdict
    words: str


def sound(words: str) -> Seen:
    return Seen(Verdict.SOUND, words)


def partly(words: str) -> Seen:
    return Seen(Verdict.PARTLY, words)


def exposed(words: str) -> Seen:
    return Seen(Verdict.EXPOSED, words)


Run = Callable[[Hall], Awaitable[Seen]]


@dataclass(frozen=True, slots=True)
class Exhibit:
    """One scenario.

    Attributes:
        id: for the command line.
        title: a few words, for the table.
        what: what the scenario does, and what a sound lock does then.
        known: where the defect was reported, as project and number.
        needs: what a lock must have for this scenario; see `reason`.

    """

    id: str
    title: str
    what: str
    known: tuple[str, ...]
    needs: frozenset[str]
    run: Run


EXHIBITS: dict[str, Exhibit] = {}


def exhibit(title: str, known: str = "", needs: str = "") -> Callable[[Run], Run]:
    """Register a scenario. Its docstring is its description on the page."""

    def put(run: Run) -> Run:
        name = getattr(run, "__name__", "").replace("_", "-")
        what = " ".join((run.__doc__ or "").split())
        reported = tuple(one for one in known.split(", ") if one)
        EXHIBITS[name] = Exhibit(name, title, what, reported, frozenset(needs.split()), run)
        return run

    return put


def reason(exhibit: Exhibit, flavor: str, variant: Variant) -> str:
    """Return why a scenario does not apply to a lock; empty if it applies."""
    reasons = {
        "redis": variant.backend != "redis" and "for locks on Redis",
        "zookeeper": variant.backend != "zookeeper" and "for locks on ZooKeeper",
        "link": variant.backend == "file" and "no network in between",
        "asyncio": flavor != "asyncio" and "for asyncio",
        "blocking": flavor != "blocking" and "for blocking locks",
        "leases": not variant.leases and "held without a lease",
        "wakes": not variant.wakes and "its waiters poll",
    }
    return next((str(why) for need, why in reasons.items() if need in exhibit.needs and why), "")


def run_scenario(exhibit: Exhibit, module: str, flavor: str, place: Place) -> Seen:
    """Run one scenario on one lock."""
    variant: Variant = import_module(f"museum.subjects.{module}").VARIANTS[flavor]
    if why := reason(exhibit, flavor, variant):
        return Seen(Verdict.NOT_APPLICABLE, why)

    async def work() -> Seen:
        hall = Hall(module, flavor, variant, place)
        try:
            async with asyncio.timeout(WITHIN):
                return await exhibit.run(hall)
        finally:
            await hall.close()

    return asyncio.run(work())
