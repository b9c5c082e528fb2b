"""Time that a process does not notice: its machine sleeps, or others have the processor. It is notified in time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from leasehold import Client
from leasehold._runtimes.clock import boottime
from leasehold_lab.servers import RedisServer
from leasehold_lab.servers.clock import Clock

PROGRAM = Path(__file__).parents[1] / "support" / "programs" / "redis_client.py"
BUSY = 2.0
"""Seconds of a busy machine."""


def said(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.stdout is not None
    facts: dict[str, Any] = json.loads(process.stdout.readline())
    return facts


@contextmanager
def child(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("flavor", ["blocking", "asyncio"])
def test_a_machine_that_was_suspended(flavor: str, redis_server: RedisServer, namespace: str, tmp_path: Path) -> None:
    """A7: the clock that counts sleep has gone on, that of timers has not; the first call afterwards tells.

    No client has taken the lock meanwhile, so only the clock shows the loss.
    """
    lease = 30.0 if flavor == "blocking" else 3.0  # a caller notices at once; a sleeping one, when its renewal is due
    clock = Clock(tmp_path)
    command = [
        *clock.command_prefix,
        sys.executable,
        str(PROGRAM),
        flavor,
        redis_server.url,
        namespace,
        "stop",
        str(lease),
        "x",
    ]
    with child(*command) as holder:
        assert said(holder)["name"] == "x"
        clock.sleep(60.0)
        slept = time.monotonic()
        if flavor == "blocking":
            assert holder.stdin is not None
            holder.stdin.write(b"go on\n")
            holder.stdin.flush()
        assert said(holder)["check"] == "lost"
        assert time.monotonic() - slept < (0.0 if flavor == "blocking" else lease / 3) + BUSY


STARVED = """
import json, os, sys
from leasehold import Client, LeaseLost
from leasehold._runtimes.clock import boottime

url, namespace, lease = sys.argv[1:]
with Client.from_url(url, namespace=namespace) as locks:
    hold = locks.lock("x", lease=float(lease)).acquire()
    print(json.dumps({"token": hold.token}), flush=True)
    asked = 0.0
    try:
        while True:
            now = boottime()
            hold.raise_if_lost()
            asked = now
    except LeaseLost:
        print(json.dumps({"passed": asked}), flush=True)
"""
"""Hold, and look at the clock before each check; say when the last began that passed."""


def test_a_holder_whose_renewals_get_no_processor(redis_server: RedisServer, namespace: str) -> None:
    """A10: others take the processor that it shares; its checks fail before another client can have the lock."""
    lease, core = 0.6, min(os.sched_getaffinity(0))
    with (
        Client.from_url(redis_server.url, namespace=namespace) as others,
        child(sys.executable, "-c", STARVED, redis_server.url, namespace, str(lease)) as holder,
        ExitStack() as spinners,
    ):
        token = said(holder)["token"]
        os.sched_setaffinity(holder.pid, {core})
        for thread in Path(f"/proc/{holder.pid}/task").iterdir():
            os.sched_setscheduler(int(thread.name), os.SCHED_IDLE, os.sched_param(0))
        for _ in range(3):
            spinner = spinners.enter_context(child(sys.executable, "-c", "while True: pass"))
            os.sched_setaffinity(spinner.pid, {core})
        hold = others.lock("x", lease=30.0).acquire(timeout=20.0)
        granted = boottime()
        assert hold is not None, "it was starved, and yet it renewed"
        assert hold.token > token
        spinners.close()
        assert said(holder)["passed"] < granted
        hold.raise_if_lost()
        hold.release()
