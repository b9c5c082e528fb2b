"""Two workers of a task queue, their broker, the store of their locks, and the journal of their tasks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from leasehold import Client
from leasehold_lab.servers import RedisServer
from support.workers import PATIENCE, Entry, Journal, Worker, working

PROGRAMS = Path(__file__).parent / "programs"

COMMANDS = {
    "dramatiq": ("-m", "dramatiq", "of_dramatiq", "--processes", "1", "--threads", "4"),
    "huey": ("-m", "huey.bin.huey_consumer", "of_huey.huey", "-w", "4", "-d", "0.1", "-m", "0.5", "-s", "1"),
    "rq": ("-c", "from rq.cli import main; main()", "worker", "--with-scheduler", "--url", "BROKER"),
    "taskiq": ("-m", "taskiq", "worker", "of_taskiq:broker", "--workers", "1"),
    "arq": ("-c", "from arq.cli import cli; cli()", "of_arq.WorkerSettings"),
}
"""How a worker of each queue is started."""


@dataclass(frozen=True, slots=True)
class Workers:
    """What a test of a queue works with."""

    queue: str
    python: str
    server: RedisServer
    journal: Journal
    processes: list[Worker]
    environment: dict[str, str]

    def send(self, *messages: tuple[str, str, float]) -> None:
        """Send messages: the task, the order and the seconds that it takes."""
        subprocess.run(
            [self.python or sys.executable, "-c", f"import of_{self.queue}; of_{self.queue}.send({list(messages)!r})"],
            env=self.environment,
            check=True,
            timeout=PATIENCE,
        )

    def ended(self, order: str, count: int = 1) -> list[Entry]:
        """Wait until so many tasks for an order have ended well."""
        try:
            return self.journal.until(count, "end", order=order)
        except AssertionError as error:
            said = "\n".join(worker.said()[-3000:] for worker in self.processes)
            raise AssertionError(f"{error}\n{said}") from None


@contextmanager
def workers_of(queue: str, folder: Path, python: str = "") -> Iterator[Workers]:
    """Run two workers of a queue; their broker is another server than the store of their locks."""
    with RedisServer() as broker, RedisServer() as server, ExitStack() as stack:
        journal = Journal(folder / "journal")
        given = {"LOCKS": server.url, "BROKER": broker.url, "JOURNAL": str(journal.path)}
        command = [broker.url if word == "BROKER" else word for word in COMMANDS[queue]]
        processes = [
            stack.enter_context(
                working(*command, folder=folder, name=f"{queue}-{number}", python=python, path=PROGRAMS, **given)
            )
            for number in range(2)
        ]
        path = f"{PROGRAMS}:{Path(__file__).parents[2]}"
        yield Workers(queue, python, server, journal, processes, {**given, "PYTHONPATH": path, "HOME": str(folder)})


def never_together(journal: Journal) -> None:
    """Check that no two tasks for one order were at work at the same time, and that tokens only grew."""
    inside = dict[str, int]()
    last = dict[str, int]()
    for entry in journal.entries():
        order, token = entry["order"], entry["token"]
        if entry["what"] == "begin":
            assert order not in inside, f"two at once: {journal.entries(order=order)}"
            assert token > last.get(order, 0)
            inside[order] = last[order] = token
        else:
            assert inside.pop(order) == token


def all_that_is_promised(workers: Workers) -> None:
    """Go through the life of a queue with one pair of workers, which take seconds to start."""
    _one_at_a_time(workers)
    _busy_is_skipped(workers)
    _a_lost_lease_is_a_failure_that_is_tried_again(workers)
    _while_the_store_is_down_nothing_runs(workers)
    _a_killed_worker_blocks_for_a_lease(workers)


def _one_at_a_time(workers: Workers) -> None:
    workers.send(*[("ship", "one", 0.2)] * 4, ("ship", "two", 0.2))
    workers.ended("one", 4)
    workers.ended("two")
    never_together(workers.journal)


def _busy_is_skipped(workers: Workers) -> None:
    workers.send(("ship", "busy", 0.5))
    workers.journal.until(1, "begin", order="busy")
    workers.send(("skip", "busy", 0), ("skip", "free", 0))
    workers.ended("free")
    workers.ended("busy")  # it waited until the other had ended
    workers.send(("skip", "busy", 0))
    workers.ended("busy", 2)
    assert len(workers.journal.entries("begin", order="busy")) == 2, "the first was skipped"


def _a_lost_lease_is_a_failure_that_is_tried_again(workers: Workers) -> None:
    workers.send(("ship", "lose", 0))
    (begun,) = workers.journal.until(1, "begin", order="lose")
    with Client.from_url(workers.server.url) as operator:
        assert operator.force_release("order:lose", begun["token"])
    workers.journal.until(1, "lost", order="lose")
    (ended,) = workers.ended("lose")
    assert ended["token"] > begun["token"]


def _while_the_store_is_down_nothing_runs(workers: Workers) -> None:
    workers.server.kill()
    workers.send(("ship", "down", 0))
    workers.send(("ship", "down", 0))
    workers.server.start()
    workers.ended("down", 2)


def _a_killed_worker_blocks_for_a_lease(workers: Workers) -> None:
    workers.send(("ship", "killed", 60))
    workers.journal.until(1, "begin", order="killed")
    with Client.from_url(workers.server.url) as rival:
        info = rival.inspect("order:killed")
        assert info is not None
        holder = int(str(info.holders[0].owner).split(":")[1])
        for worker in workers.processes:
            if holder in worker.pids():
                worker.kill()
        hold = rival.lock("order:killed").acquire(timeout=PATIENCE)
        assert hold is not None
        hold.release()
    workers.send(("ship", "after", 0))
    workers.ended("after")
