"""Ctrl-C ends the demo soon, whatever it does at that moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.missed_turns import turns_missed

ENDS_WITHIN = 1.0
"""Seconds from Ctrl-C to the end of the demo."""

RUNS_SLOWLY = 2.0
"""This many times longer on a machine where other work takes every other turn of a processor."""


@pytest.mark.parametrize("after", [0.4, 0.6, 0.8, 1.0, 1.2, 1.5, 2.0, 3.0, 4.5])
def test_ctrl_c_ends_the_demo_soon_at_any_moment(after: float, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "leasehold", "demo", "--requests", "200"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with (
        turns_missed() as missed,
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        ) as demo,
    ):
        time.sleep(after)
        sent = time.monotonic()
        if demo.poll() is None:
            os.killpg(demo.pid, signal.SIGINT)  # as a terminal does: to the demo and all its children
        demo.communicate(timeout=60)
        took = time.monotonic() - sent
    assert took - missed.total() < ENDS_WITHIN * RUNS_SLOWLY
    assert demo.returncode in (0, 130, -signal.SIGINT)
    assert not list(tmp_path.iterdir())
