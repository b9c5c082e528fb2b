"""Processes that share one lock, of several libraries and languages; see ``programs/lock_peer.py`` for their orders."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from leasehold_lab.servers import RedisServer

PROGRAM = str(Path(__file__).parent / "programs" / "lock_peer.py")

ANSWERS_WITHIN = 120.0
"""Seconds for an answer: a virtual machine starts slowly on a busy machine."""


class Peer:
    """One process. Its first answer is ``ready``."""

    def __init__(self, command: Sequence[str], *args: object) -> None:
        self.kind = str(args[0])
        self.process = subprocess.Popen(
            [*command, *map(str, args)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self._said: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._said.put(line.strip())
        self._said.put("its process has ended")

    def order(self, text: str) -> None:
        """Send an order."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()

    def answer(self, within: float = ANSWERS_WITHIN) -> str:
        """Return the next answer."""
        return self._said.get(timeout=within)

    def ask(self, text: str, within: float = ANSWERS_WITHIN) -> str:
        """Send an order, and return the answer."""
        self.order(text)
        return self.answer(within)

    def acquires(self) -> int:
        """Wait for the lock; return its token, 0 if the library has none."""
        answer = self.ask("lock")
        assert answer.startswith("held "), f"{self.kind}: {answer}"
        return int(answer.removeprefix("held "))

    def kill(self) -> float:
        """Kill the process; return the time."""
        self.process.kill()
        self.process.wait()
        at = time.monotonic()
        self._thread.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                pass
        return at


class Peers:
    """Processes that share the lock ``key``; ``commands`` has the programs of foreign kinds.

    The room is on a server of Redis; so is the lock, unless it has a URL of its own.
    """

    def __init__(self, server: RedisServer, layout: str, key: str, lease: float, commands: Any) -> None:
        self.server = server
        self.key = key
        there = [layout, server.url] if "://" in layout else [f"{server.url}?layout={layout}"]
        self.server_kind = there[0].partition(":")[0]
        self._args = there[0], key, round(lease * 1000), *there[1:]
        self._commands = commands
        self.all: list[Peer] = []

    def start(self, *kinds: str) -> list[Peer]:
        """Start a process of each kind; they are ready."""
        made = [Peer(self._commands.get(kind, [sys.executable, PROGRAM]), kind, *self._args) for kind in kinds]
        self.all += made
        for peer in made:
            assert (answer := peer.answer()) == "ready", f"{peer.kind}: {answer}"
        return made

    def counted(self) -> int:
        """Return the number in the room."""
        return int(self.server.command("GET", f"{self.key}:count") or 0)

    def visits(self) -> Counter[str]:
        """Return how often each kind visited the room."""
        return Counter(kind for kind, _ in self.log())

    def log(self) -> list[tuple[str, int]]:
        """Return kind and token of each visit, in order."""
        lines = [str(line).split() for line in self.server.command("LRANGE", f"{self.key}:log", 0, -1)]
        return [(kind, int(token)) for kind, token in lines]


noted: list[dict[str, Any]] = []
"""What the present test has measured, for `support.plugins.foreign_table`."""


def note(peers: Peers, kind: str, what: str, **figures: Any) -> None:
    """Note figures of the lock that a foreign kind shares: ``visits``, ``woken`` or ``killed``."""
    noted.append({"kind": kind, "server": peers.server_kind, "what": what, **figures})


def ours(kind: str) -> bool:
    """Return whether a kind is one of ours."""
    return kind == "ours" or kind.startswith("ours-")


@contextmanager
def lock_peers(
    server: RedisServer, layout: str, key: str, lease: float = 3.0, commands: dict[str, list[str]] | None = None
) -> Iterator[Peers]:
    """Make a group of processes; all are ended. ``layout`` is one of the server, or the URL of a lock elsewhere."""
    peers = Peers(server, layout, key, lease, commands or {})
    try:
        yield peers
    finally:
        for peer in peers.all:
            if peer.process.poll() is None or peer.process.stdin is not None:
                peer.kill()


# --- what holds for every two kinds ------------------------------------------------------------------------------


def check_counting(peers: Peers, kinds: Sequence[str], visits: int) -> None:
    """Let processes of these kinds visit the room at the same time: no overlap, no lost update."""
    running = peers.start(*kinds)
    for peer in running:
        peer.order(f"count {visits}")
    for peer in running:
        assert (answer := peer.answer()) == "counted", f"{peer.kind}: {answer}"
    assert peers.counted() == visits * len(kinds)
    each = {kind: visits * count for kind, count in Counter(kinds).items()}
    assert peers.visits() == each
    mine = sum(count for kind, count in each.items() if ours(kind))
    for theirs in each.keys() - set(filter(ours, each)):
        note(peers, theirs, "visits", theirs=each[theirs], ours=mine)


def check_exclusion(peers: Peers, mine: str, theirs: str, wakes_within: float) -> None:
    """Each side keeps the other out, and gets the lock when the other releases it."""
    for first, second in (peers.start(mine, theirs), peers.start(theirs, mine)):
        first.acquires()
        assert second.ask("try") == "none"
        second.order("lock")
        time.sleep(0.3)
        start = time.monotonic()
        assert first.ask("unlock") == "released"
        assert second.answer().startswith("held")
        took = time.monotonic() - start
        assert took < wakes_within, f"{second.kind} was woken {took:.3f} s after the release of {first.kind}"
        note(peers, theirs, "woken", side="ours" if second.kind == mine else "theirs", ms=round(took * 1000))
        assert first.ask("try") == "none"
        assert second.ask("unlock") == "released"
        assert first.ask("try").startswith("held")
        assert first.ask("unlock") == "released"


def wake_in_turn(peers: Peers, mine: str, theirs: str, wakes: int = 10) -> dict[str, list[float]]:
    """Let each side wake the other so often; return how many seconds that took, by who was woken."""
    took: dict[str, list[float]] = {mine: [], theirs: []}
    holder, waiter = peers.start(mine, theirs)
    holder.acquires()
    for _ in range(2 * wakes):
        waiter.order("lock")
        time.sleep(0.1)
        start = time.monotonic()
        holder.order("unlock")
        assert waiter.answer().startswith("held")
        took[waiter.kind].append(time.monotonic() - start)
        assert holder.answer() == "released"
        holder, waiter = waiter, holder
    return took


def check_kill(peers: Peers, killed: str, next_: str, lease: float, noise: float) -> float:
    """Kill a holder while another waits; return seconds from the kill to the next grant, a lease at most."""
    holder, waiter = peers.start(killed, next_)
    holder.acquires()
    waiter.order("lock")
    time.sleep(0.3)
    at = holder.kill()
    assert waiter.answer().startswith("held")
    took = time.monotonic() - at
    assert took < lease + noise, f"{next_} acquired {took:.3f} s after the kill of {killed}"
    note_kill(peers, killed, next_, took, lease)
    assert waiter.ask("unlock") == "released"
    return took


def note_kill(peers: Peers, killed: str, next_: str, took: float, lease: float) -> None:
    """Note how long the kill of a holder blocked another, of which one at least is foreign."""
    for theirs in {killed, next_} - set(filter(ours, (killed, next_))):
        note(peers, theirs, "killed", side="ours" if ours(killed) else "theirs", ms=round(took * 1000), lease=lease)
