"""Runs the demo: starts the services, sends the requests of each row, and counts."""

from __future__ import annotations

import os
import platform
import secrets
import shlex
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Protocol

from leasehold._url import parse
from leasehold.client import Client
from leasehold.stores import registry
from leasehold_lab.demo import service
from leasehold_lab.demo.children import Children, DemoError
from leasehold_lab.demo.counter_stores import Counter
from leasehold_lab.demo.counters import Place, counter_at, prepared
from leasehold_lab.demo.load import fire_beside
from leasehold_lab.demo.result import DemoResult, Failure, RowResult, Visit
from leasehold_lab.demo.rows import NAMESPACE_PREFIX, Guard

SPARE_FILES = 128
"""Open files that a process needs besides its connections."""

REDLOCK_NODES = 3


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user asked for. ``url`` None is SQLite in a temporary folder."""

    url: str | None = None
    requests: int = 666
    services: int = 2
    nginx: bool = False


class Progress(Protocol):
    """Displays the progress of a run."""

    def row_begins(self, guard: Guard, requests: int) -> None: ...

    def row_moves(self, answered: int, failed: int) -> None: ...

    def row_ends(self, row: RowResult) -> None: ...


def run(settings: Settings, progress: Progress) -> DemoResult:
    """Run all rows, one after the other, in the same services.

    Raises:
        DemoError: it cannot run here; the message has the reason.
        ValueError, MissingDriver, StoreUnavailable: the store cannot be used.

    """
    began = time.monotonic()
    _check(settings)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="leasehold-demo-")))
        url = settings.url or f"sqlite:{folder / 'locks.db'}"
        namespace = NAMESPACE_PREFIX + secrets.token_hex(6)
        client = stack.enter_context(Client.from_url(url, namespace=namespace))
        client.inspect("page-views")  # raises before anything starts if the store is down
        place = stack.enter_context(prepared(client, url, namespace, folder))
        counter = stack.enter_context(closing(counter_at(place, client, url, namespace)))
        children = stack.enter_context(Children(folder))
        redlock = _redlock_url(children)
        ports = children.services(settings.services, _environment(url, namespace, place, redlock))
        doors = [children.nginx(ports)] if settings.nginx else ports
        rows = [_run_row(guard, counter, doors, settings.requests, progress) for guard in _guards(redlock)]
    seconds = time.monotonic() - began
    return _result(settings, place, tuple(rows), seconds)


def _check(settings: Settings) -> None:
    if settings.url is not None and parse(settings.url).scheme == "memory":
        raise DemoError(
            "memory: is seen by one process only, and the demo runs several; leave --url out (SQLite) or name a server"
        )
    files = (2 if settings.nginx else 1) * settings.requests + SPARE_FILES
    allowed = _raise_file_limit(files)
    if files > allowed:
        raise DemoError(
            f"{settings.requests} requests at once need {files} open files, and {allowed} are allowed here; "
            "ask for fewer with --requests, or raise the limit (ulimit -n)"
        )


def _raise_file_limit(files: int) -> int:
    """Let this process and its children open as many files as it may, and return how many."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return files
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    wanted = files * 4 if hard == unlimited else min(files * 4, hard)
    if soft != unlimited and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return files if soft == unlimited else soft


def _redlock_url(children: Children) -> str | None:
    """Start the servers of the Redlock row, if this installation has such a store and can start them."""
    if "redlock" not in registry.BUILT_IN or shutil.which("redis-server") is None:
        return None
    ports = [children.redis(number) for number in range(1, REDLOCK_NODES + 1)]
    return "redlock://" + ",".join(f"127.0.0.1:{port}" for port in ports)


def _environment(url: str, namespace: str, place: Place, redlock: str | None) -> Mapping[str, str]:
    settings = {service.STORE_URL: url, service.NAMESPACE: namespace, service.COUNTERS: str(place)}
    return settings if redlock is None else {**settings, service.REDLOCK_URL: redlock}


def _guards(redlock: str | None) -> Sequence[Guard]:
    return [guard for guard in Guard if guard is not Guard.REDLOCK or redlock is not None]


def _run_row(guard: Guard, counter: Counter, ports: Sequence[int], requests: int, progress: Progress) -> RowResult:
    progress.row_begins(guard, requests)
    began = time.perf_counter()
    outcomes = fire_beside(ports, f"/{guard.value}", requests, progress.row_moves)
    seconds = time.perf_counter() - began
    final = counter.read(guard)
    visits = tuple(outcome for outcome in outcomes if isinstance(outcome, Visit))
    failures = tuple(outcome for outcome in outcomes if isinstance(outcome, Failure))
    row = RowResult(guard, requests, final, seconds, visits, failures)
    progress.row_ends(row)
    return row


def _result(settings: Settings, place: Place, rows: tuple[RowResult, ...], seconds: float) -> DemoResult:
    store = "SQLite, a file in a temporary folder" if settings.url is None else str(parse(settings.url))
    balancer = "nginx" if settings.nginx else "round robin in the load generator"
    facts = {**_facts(settings), "counter": place.words}
    return DemoResult(
        rows, settings.requests, settings.services, store, balancer, seconds, facts, repeat_command(settings)
    )


def _facts(settings: Settings) -> Mapping[str, str]:
    facts = {
        "leasehold": metadata.version("leasehold"),
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": platform.platform(),
        "processors": str(os.cpu_count()),
        "run at": time.strftime("%Y-%m-%d %H:%M:%S %z"),
    }
    if settings.url is None or parse(settings.url).scheme == "sqlite":
        facts["SQLite"] = sqlite3.sqlite_version
    return facts


def repeat_command(settings: Settings) -> str:
    """Return the command that repeats the run; without a password in the URL."""
    words = ["leasehold", "demo"]
    if settings.url is not None:
        words += ["--url", str(parse(settings.url))]
    words += ["--requests", str(settings.requests), "--services", str(settings.services)]
    return shlex.join([*words, "--nginx"] if settings.nginx else words)
