"""Tasks under locks, with two real workers of each queue: one at a time, whatever becomes of workers and store."""

from __future__ import annotations

from pathlib import Path

import pytest
from queue_workers import all_that_is_promised, workers_of


@pytest.mark.parametrize("queue", ["dramatiq", "huey", "rq", "taskiq"])
def test_tasks_with_one_name_run_one_at_a_time_and_end_as_the_queue_does(queue: str, tmp_path: Path) -> None:
    with workers_of(queue, tmp_path) as workers:
        all_that_is_promised(workers)
