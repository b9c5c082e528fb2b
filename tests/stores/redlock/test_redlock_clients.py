"""Redlock when its clients fail: they are cancelled at each step, killed, stopped, or fork."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time

import pytest
from redlock_votes import voted

from leasehold import AsyncClient, Client
from support.patience import until
from support.steps import TO_THE_END, after_steps


def test_cancel_at_each_step_leaves_nothing(redlock_nodes, namespace):
    async def body():
        async with AsyncClient.from_url(redlock_nodes.url, namespace=namespace) as locks:
            await (await locks.lock("x").acquire()).release()
            outcomes = set()
            for k in (*range(40), TO_THE_END):
                task = asyncio.ensure_future(locks.lock("x").acquire())
                await after_steps(k, task)
                outcomes.add(task.cancelled())
                if not task.cancelled():
                    await task.result().release()
                start = asyncio.get_running_loop().time()
                hold = await locks.lock("x").acquire(timeout=5)  # the lease is 30 s
                assert asyncio.get_running_loop().time() - start < 3.0
                await hold.release()
            assert outcomes == {True, False}

    asyncio.run(body())
    with Client.from_url(redlock_nodes.url, namespace=namespace) as locks:
        until(lambda: locks.holds() == [] and not any(voted(node, namespace) for node in redlock_nodes.nodes), 5.0)


HOLD = """
import sys, time
from leasehold import Client
locks = Client.from_url(sys.argv[1], namespace=sys.argv[2])
hold = locks.lock("x", lease=1.0).acquire()
print(hold.token, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_holder_that_dies_or_stalls_blocks_for_its_lease(redlock_nodes, namespace, end):
    command = [sys.executable, "-c", HOLD, redlock_nodes.url, namespace]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder,
        Client.from_url(redlock_nodes.url, namespace=namespace) as locks,
    ):
        try:
            token = int(holder.stdout.readline())
            assert locks.lock("x").acquire(blocking=False) is None
            os.kill(holder.pid, end)
            start = time.monotonic()
            hold = locks.lock("x").acquire(timeout=20)
            assert time.monotonic() - start < 1.0 + 1.0  # lease, back-off and noise
            assert hold.token > token
            hold.release()
        finally:
            holder.kill()


def test_a_forked_child_has_connections_and_votes_of_its_own(redlock_nodes, namespace):
    with Client.from_url(redlock_nodes.url, namespace=namespace) as locks:
        hold = locks.lock("x").acquire()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                taken = locks.lock("x").acquire(blocking=False)
                own = locks.lock("y").acquire(timeout=5)
                code = 0 if taken is None and own is not None and own.release() else 2
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        hold.raise_if_lost()
        assert hold.release() is True
