"""Clients in processes of their own, which a test kills or stops while they hold or wait."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

from leasehold import Client
from support.patience import until

PARTY = str(Path(__file__).parents[1] / "programs" / "redis_client.py")
CRASH_BOUND = 0.25
"""Seconds after the lease within which a dead holder's lock has its next holder."""


class Party:
    """A process that holds or waits."""

    def __init__(self, server, namespace, flavor, role, lease, *names):
        command = [sys.executable, PARTY, flavor, server.url, namespace, role, str(lease), *names]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.said = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._read)
        self.thread.start()

    def _read(self):
        for line in self.process.stdout:
            self.said.put(json.loads(line))

    def hear(self, timeout=20):
        return self.said.get(timeout=timeout)

    def say(self):
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def kill(self):
        self.process.kill()
        self.process.wait()
        at = time.monotonic()
        self.thread.join()
        self.process.stdin.close()
        self.process.stdout.close()
        return at


@contextmanager
def parties():
    """Start processes; all are ended."""
    started = []

    def start(*args):
        started.append(Party(*args))
        return started[-1]

    try:
        yield start
    finally:
        for party in started:
            if party.process.stdin and not party.process.stdin.closed:
                party.kill()


# --- killed holders --------------------------------------------------------------------------------------------


def crash(server, namespace, flavor, kills, lease):
    """Kill a process that holds many locks, while two others wait; return how long each took after the lease."""
    names = [f"job-{i}" for i in range(kills)]
    with parties() as start, Client.from_url(server.url, namespace=namespace) as locks:
        holder = start(server, namespace, flavor, "hold", lease, *names)
        tokens = {}
        while len(tokens) < kills:
            said = holder.hear()
            if "token" in said:
                tokens[said["name"]] = said["token"]
        waiters = [start(server, namespace, other, "wait", lease, *names) for other in ("asyncio", "blocking")]
        until(lambda: sum(len(info.waiters) for info in locks.holds()) == 2 * kills, 20)
        time.sleep(1.3 * lease)  # they wait through renewals
        killed = holder.kill()
        late = {}
        for waiter in waiters:
            seen = 0
            while seen < kills:
                said = waiter.hear()
                if "token" in said:
                    seen += 1
                    assert said["token"] > tokens[said["name"]]
                    late[said["name"]] = min(late.get(said["name"], 1e9), said["at"] - killed - lease)
        return [late[name] for name in names]
