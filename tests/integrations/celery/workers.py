"""Real workers and beats of Celery as child processes, and what their tasks wrote down."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from leasehold_lab.servers import RedisServer
from support.patience import until

HERE = Path(__file__).parent

PATIENCE = 40.0
"""Seconds in which something happens, on a machine that is busy."""

TIED = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()
"""A prefix that ends a program with the tests that started it, however these end."""


@dataclass
class Program:
    """A child process, in a process group of its own."""

    process: subprocess.Popen[bytes]
    log: Path

    def send(self, number: int) -> None:
        os.killpg(self.process.pid, number)

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def until_said(self, words: str) -> None:
        def said() -> bool:
            assert self.process.poll() is None, self.said()
            return words in self.said()

        until(said, within=PATIENCE)

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)


@dataclass
class Site:
    """One Redis, which is broker, result backend and store, and the programs on it."""

    server: RedisServer
    folder: Path
    app: str = "shop"
    env: dict[str, str] = field(default_factory=dict)

    @property
    def broker(self) -> str:
        return f"{self.server.url.rpartition('/')[0]}/1"

    def environment(self, **more: str) -> dict[str, str]:
        own = {"BROKER_URL": self.broker, "STORE_URL": self.server.url, "HOME": str(self.folder)}
        env = {**os.environ, **own, **self.env, **more}
        return {**env, "PYTHONPATH": self.env.get("PYTHONPATH", str(HERE))}

    @contextmanager
    def run(self, name: str, *command: str, **env: str) -> Iterator[Program]:
        """Run a module of Python; it is killed with all that it started, whatever happens."""
        program = self.start(name, *command, **env)
        try:
            yield program
        finally:
            end(program)

    def start(self, name: str, *command: str, **env: str) -> Program:
        log = self.folder / f"{name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*TIED, sys.executable, *command],
                cwd=self.folder,
                env=self.environment(**env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return Program(process, log)

    @contextmanager
    def worker(
        self, pool: str = "prefork", concurrency: int = 4, name: str = "worker", **env: str
    ) -> Iterator[Program]:
        """Run a worker, and wait until it takes tasks."""
        options = ("--pool", pool, "--concurrency", str(concurrency), "--hostname", f"{name}@%h", "--loglevel", "INFO")
        quiet = ("--without-mingle", "--without-gossip")
        with self.run(name, "-m", "celery", "--app", self.app, "worker", *options, *quiet, **env) as program:
            program.until_said("ready.")
            yield program

    def records(self, name: str) -> list[dict[str, Any]]:
        """Return what the tasks of a name wrote down, in order."""
        with redis.Redis.from_url(self.broker) as broker:
            found: Any = broker.lrange(f"records:{name}", 0, -1)
        return [json.loads(each) for each in found]

    def until_recorded(self, name: str, what: str, count: int = 1) -> list[dict[str, Any]]:
        """Wait until so many records say ``what``; return all."""
        until(lambda: sum(each["what"] == what for each in self.records(name)) >= count, within=PATIENCE)
        return self.records(name)


def most_at_once(records: list[dict[str, Any]]) -> int:
    """Return how many bodies ran at the same time, at most."""
    running = most = 0
    for each in records:
        running += 1 if each["what"] == "begin" else -1
        most = max(most, running)
    return most


def end(program: Program) -> None:
    """Kill a program and all that it started, also while it is stopped."""
    try:
        os.killpg(program.process.pid, signal.SIGKILL)
    except ProcessLookupError:  # nothing is left
        pass
    program.process.wait()
