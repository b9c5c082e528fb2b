"""Puts the installed libraries through the scenarios, each in the first of the given interpreters that has it."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from museum.boot import command
from museum.catalogue import Seen, Verdict

PEERS = {
    "redis_py": "redis-py Lock",
    "coredis_lock": "coredis Lock",
    "python_redis_lock": "python-redis-lock",
    "pottery_redlock": "pottery Redlock",
    "redlock_ng": "redlock-ng",
    "sherlock_lock": "sherlock",
    "aioredlock_lock": "aioredlock",
    "kazoo_lock": "kazoo Lock",
    "file_lock": "filelock FileLock",
}
"""Titles by the subject's module."""


@dataclass(slots=True)
class Report:
    """What one library showed.

    Attributes:
        version: empty if it is missing.
        missing: why.
        seen: by flavor and scenario.
        errors: scenarios that came to no verdict.

    """

    title: str
    version: str = ""
    missing: str = ""
    seen: dict[tuple[str, str], Seen] = field(default_factory=dict)
    errors: dict[tuple[str, str], str] = field(default_factory=dict)


def visit(module: str, title: str, pythons: Sequence[str], ports: Mapping[str, int]) -> Report:
    """Put one library through all scenarios, on servers at these ports, by backend."""
    report = Report(title)
    for python in pythons:
        with tempfile.TemporaryDirectory() as folder:
            spec = json.dumps({"ports": dict(ports), "folder": folder})
            line = command(python, "museum.worker", module, spec)
            done = subprocess.run(line, capture_output=True, timeout=600, check=False)
        report.missing = f"{python}: {done.stderr.decode()[-300:]}" if done.returncode else ""
        for said in map(json.loads, done.stdout.decode().splitlines()):
            _take(report, said)
        if report.version:
            return report
    return report


def _take(report: Report, said: dict[str, str]) -> None:
    if "missing" in said:
        report.missing = said["missing"]
    elif "version" in said:
        report.version = said["version"]
    elif "error" in said:
        report.errors[said["flavor"], said["exhibit"]] = said["error"]
    else:
        report.seen[said["flavor"], said["exhibit"]] = Seen(Verdict(said["verdict"]), said["words"])
