"""The environment of a run: machine, versions, load."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path

DRIVERS = ("redis", "hiredis", "psycopg", "PyMySQL", "kazoo")
"""Packages that leasehold or a floor may use."""


def facts(
    servers: Sequence[str], seconds: float, rounds: int, versions: Mapping[str, str], *, own: bool
) -> dict[str, str]:
    """Collect the facts that a reader needs to repeat a run."""
    load = os.getloadavg()[0]
    whose = ", started for this run, on loopback" if own else ", given; others may use it, too"
    return {
        "leasehold": metadata.version("leasehold"),
        "machine": f"{_processor()}, {_cores()} cores usable, {platform.system()} {platform.release()}",
        "load": f"{load:.1f} at the end of the run, by its one-minute average",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "server": ", ".join(servers) + whose if servers else "none",
        "drivers": ", ".join(_installed()),
        "trials": f"{rounds} rounds of {seconds:g} s, the contestants in turn, each trial in a process of its own",
        **{f"version of {title}": version for title, version in versions.items() if not version.startswith("on ")},
    }


def _installed() -> Iterator[str]:
    for name in DRIVERS:
        with suppress(metadata.PackageNotFoundError):
            yield f"{name} {metadata.version(name)}"


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1] if found else platform.processor() or platform.machine()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class MachineLoad:
    """The load of the whole machine since this object was made, if the kernel reports it (Linux)."""

    def __init__(self) -> None:
        self._before = _jiffies()

    def seconds(self) -> float | None:
        """Return the seconds of processor time that all processes have used since; None if unknown."""
        now = _jiffies()
        if now is None or self._before is None:
            return None
        return (now - self._before) / float(os.sysconf("SC_CLK_TCK"))


def _jiffies() -> int | None:
    path = Path("/proc/stat")
    if not path.exists():
        return None
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, path.read_text().split("\n", 1)[0].split()[1:9])
    return user + nice + system + irq + softirq + steal
