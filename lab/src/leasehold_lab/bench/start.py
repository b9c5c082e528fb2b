"""Measure what an import of the library costs a program, and a first lock: ``python -m leasehold_lab.bench.start``.

The figure is processor time beyond that of an interpreter with `asyncio` and `ssl`, which such a program has anyway.
Each row is the median of fresh interpreters, in turns, so that a busy machine disturbs all rows alike. The modules are
compiled before, as an installed package is.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from statistics import median

from leasehold_lab.servers import MissingServer, RedisServer

FLOOR = "import asyncio, ssl"

ROWS = {
    "import leasehold": "import leasehold",
    "from leasehold import Client": "from leasehold import Client",
    "from leasehold import *": "from leasehold import *",
    "a lock of memory": "import leasehold\nwith leasehold.Client.from_url('memory:') as c, c.lock('a'): pass",
    "a first lock of Redis": "import leasehold\nwith leasehold.Client.from_url({url!r}) as c, c.lock('a'): pass",
    "import redis": "import redis",
    "redis-py's first Lock": "import redis\nwith redis.Redis.from_url({url!r}).lock('a', timeout=30): pass",
}
"""Code by title; ``{url!r}`` is a server of Redis."""

TURNS = 15


def spent(code: str, environment: Mapping[str, str]) -> float:
    """Return the processor time in milliseconds of a fresh interpreter that runs ``code``."""
    child = subprocess.Popen([sys.executable, "-c", code], env=environment)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"this failed with status {child.returncode}: {code}")
    return 1e3 * (used.ru_utime + used.ru_stime)


def measure(turns: int = TURNS) -> dict[str, float]:
    """Return milliseconds by row, beyond the floor."""
    rows = {name: code for name, code in ROWS.items() if "redis" not in name.casefold() or find_spec("redis")}
    with ExitStack() as stack:
        compiled = stack.enter_context(tempfile.TemporaryDirectory())
        try:
            url = stack.enter_context(RedisServer()).url
        except MissingServer:
            url = ""
        rows = {name: code.format(url=url) for name, code in rows.items() if url or "{" not in code}
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": compiled, "PYTHONDONTWRITEBYTECODE": ""}
        found: dict[str, list[float]] = {name: [] for name in rows}
        for turn in range(turns + 1):
            floor = spent(FLOOR, environment)
            for name, code in rows.items():
                took = spent(f"{FLOOR}\n{code}", environment) - floor
                if turn:  # the first compiles
                    found[name].append(took)
    return {name: median(each) for name, each in found.items()}


def main() -> None:
    """Print a table."""
    found = measure()
    for name, took in found.items():
        other = "redis-py's first Lock" if name == "a first lock of Redis" else "import redis"
        print(f"{name:30} {took:6.1f} ms" + (f"   {took / found[other]:5.2f} of {other}" if other in found else ""))


if __name__ == "__main__":
    main()
