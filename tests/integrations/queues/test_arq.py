"""Jobs of arq under locks, in an environment of its own, which needs a package index: arq pins an old redis-py."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import venv
import weakref
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from queue_workers import all_that_is_promised, workers_of

from leasehold import AsyncClient
from leasehold.integrations.arq import locked_job

TOP = Path(__file__).parents[3]


@pytest.mark.nightly  # it installs packages
@pytest.mark.timeout(300)
def test_jobs_of_arq_with_one_name_run_one_at_a_time(tmp_path: Path) -> None:
    with workers_of("arq", tmp_path, str(environment(tmp_path / "env"))) as workers:
        all_that_is_promised(workers)


class Retry(RuntimeError):
    """As arq's own, which is not installed here."""

    def __init__(self, defer: float | None = None) -> None:
        super().__init__()
        self.defer_score = defer


class Order:
    """An argument of a job."""


def test_a_job_that_comes_again_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    worker: Any = ModuleType("arq.worker")
    worker.Retry = Retry
    monkeypatch.setitem(sys.modules, "arq", ModuleType("arq"))
    monkeypatch.setitem(sys.modules, "arq.worker", worker)
    orders = list[weakref.ref[Order]]()

    async def main() -> None:
        async with AsyncClient.from_url("memory:") as locks, locks.lock("order:7"):

            @locked_job(locks, "order:{number}", delay=3)
            async def ship(ctx: Any, number: int, order: Order) -> None:
                raise AssertionError("it ran under a lock that another has")

            for _ in range(3):
                order = Order()
                orders.append(weakref.ref(order))
                with pytest.raises(Retry) as raised:
                    await ship({}, 7, order)
                assert raised.value.defer_score == 3
                del order, raised
            gc.collect()
            assert [order() for order in orders] == [None] * 3

    asyncio.run(main())


def environment(folder: Path) -> Path:
    """Make an environment with arq and the sources of the repository; return its interpreter."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    pip = (str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install")
    subprocess.run([*pip, "arq>=0.26", "hiredis>=3.2,<4"], check=True, timeout=200, stdin=subprocess.DEVNULL)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    places = TOP / "src", TOP / "lab" / "src", TOP / "tests"
    (packages / "repository.pth").write_text("\n".join(map(str, places)))
    return python
