"""What the examples share: the arguments, several real processes at once, and a log that all of them write to."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from leasehold import Client

PATIENCE = 60.0
"""Seconds after which a process that has not ended is an error."""


def arguments(about: str) -> argparse.Namespace:
    """Read ``--url``; the namespace is new in each run, so that runs do not meet."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument(
        "--url", help="the store; without it LEASEHOLD_URL, and without that SQLite in your state folder"
    )
    given = parser.parse_args()
    given.namespace = f"example-{secrets.token_hex(6)}"
    return given


def client(place: argparse.Namespace) -> Client:
    """Make a client in this run's namespace: each process makes its own."""
    return Client.from_url(place.url, namespace=place.namespace)


def start(count: int, work: Callable[..., None], *given: Any) -> list[Any]:
    """Start ``work(number, *given)`` in so many new processes, which begin together."""
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(count + 1)
    processes = [
        context.Process(target=_begin, args=(together, work, number, *given), name=f"process {number}", daemon=True)
        for number in range(1, count + 1)
    ]
    for process in processes:
        process.start()
    together.wait(PATIENCE)
    return processes


def join(processes: list[Any]) -> None:
    """Wait for all; one that failed ends the example."""
    for process in processes:
        process.join(PATIENCE)
        if process.exitcode != 0:
            sys.exit(f"{process.name} ended with {process.exitcode}")


def _begin(together: Any, work: Callable[..., None], *given: Any) -> None:
    together.wait(PATIENCE)
    work(*given)


def note(log: Path, **facts: object) -> None:
    """Append a line to the log, in one write, as several processes do at the same time."""
    line = json.dumps(facts) + "\n"
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def notes(log: Path) -> list[dict[str, Any]]:
    """Read the log."""
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def verdict(broken: list[str], kept: str) -> int:
    """Say how it went; return the exit code."""
    for line in broken:
        print(f"BROKEN: {line}")
    if not broken:
        print(f"kept: {kept}")
    return 1 if broken else 0
