"""Under gevent, whose sockets ignore the kernel's time limits, waits and calls keep theirs."""

from __future__ import annotations

import subprocess
import sys
import textwrap

from leasehold_lab.servers import RedisServer

PROGRAM = """
    from gevent import monkey

    monkey.patch_all()

    import os, signal, sys
    import gevent
    from leasehold import Client, StoreUnavailable

    url, server = sys.argv[1], int(sys.argv[2])
    holder, waiter = (Client.from_url(url, response_timeout=1.0) for _ in range(2))
    for _ in range(5):  # so that the messages come soon after the waiter begins to wait
        held = holder.lock("x").acquire()
        waiting = gevent.spawn(waiter.lock("x").acquire, timeout=30)
        gevent.sleep(0.003)
        held.release()
        waiting.get().release()
    held = holder.lock("x").acquire()
    print(waiter.lock("x").acquire(timeout=0.5), flush=True)
    os.kill(server, signal.SIGSTOP)
    try:
        waiter.lock("y").acquire(timeout=0)
    except StoreUnavailable as error:
        print(type(error).__name__, flush=True)
    finally:
        os.kill(server, signal.SIGCONT)
    held.release()
    print("released", flush=True)
"""


def test_waits_and_calls_keep_their_time_limits() -> None:
    with RedisServer() as server:
        command = [sys.executable, "-c", textwrap.dedent(PROGRAM), server.url, str(server.pid)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["None", "StoreUnavailable", "released"], done.stderr
