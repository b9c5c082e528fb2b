"""The aims of leasehold in each measure, next to the result of a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from leasehold_lab.bench.report.table import ratio
from leasehold_lab.bench.result import Entry, Result, Row


@dataclass(frozen=True, slots=True)
class Aim:
    """The aims in one measure.

    Attributes:
        measure: its key.
        floor: the least fraction of the floor's rate; 0 for none.
        redis_py: the least multiple of the rate of redis-py's lock; 0 for none.
        p50: the most, as a multiple of the floor's median; 0 for none.
        p99: the most, as a multiple of the floor's 99th percentile; 0 for none.
        disturbed: the most time of a pair while one server fails, as a multiple of that with all servers; 0 for none.
        core: the most that the client may use of one core for all holds, and the server as well; 0 for none.
        memory: the most KiB in the client for each hold or waiter; 0 for none.
        server_bytes: the most bytes in the server for each hold or waiter; 0 for none.

    """

    measure: str
    floor: float = 0.0
    redis_py: float = 0.0
    p50: float = 0.0
    p99: float = 0.0
    disturbed: float = 0.0
    core: float = 0.0
    memory: float = 0.0
    server_bytes: float = 0.0


AIMS = (
    Aim("blocking-1", floor=0.75, redis_py=1.7),
    Aim("blocking-8", redis_py=2.0),
    Aim("asyncio-1", floor=0.7),
    Aim("asyncio-100", floor=0.5, redis_py=5.0),
    Aim("asyncio-1000", floor=0.5, redis_py=10.0),
    Aim("handover-2", floor=0.6, p99=3.0),
    Aim("handover-10", floor=0.6, p99=3.0),
    Aim("handover-100", floor=0.6, p99=3.0),
    Aim("handover-10-1ms", floor=0.9),
    Aim("handover-100-1ms", floor=0.9),
    Aim("handover-asyncio-1000", floor=0.5),
    Aim("redlock-1", p50=1.5),
    Aim("redlock-failing-blocking", disturbed=1.2),
    Aim("redlock-failing-asyncio", disturbed=1.2),
    Aim("held-10000", core=0.01, memory=2.0, server_bytes=250.0),
    Aim("held-blocking-10000", core=0.01, memory=2.0, server_bytes=250.0),
    Aim("waiting-10000", memory=2.5),
)

REASONS = """\
The reasons where an aim is missed follow; [where the time goes](#where-the-time-goes) shows how much each part takes.

- *One thread, one task*: the Python between two system calls. Each piece is a function call or an object that a promise
  needs: an id chosen before anything is sent, a deadline read before that, a registration with the watchdog before
  that. redis-py's lock sends one plain command to acquire and keeps nothing: its server part is cheaper than that of
  any lock with a queue.
- *1,000 tasks*: the state of 1,000 acquires does not fit the nearer caches, and the garbage collector walks through it.
  Where the floor itself hardly reaches the aim set against redis-py, no client of Redis could.
- *Hand-over*: the floor is two commands and one wake-up. A hand-over is more. A release reads and rewrites a queue (the
  tables count its commands, in two scripts with the next acquire), and sends two messages: an empty one that counts the
  receivers, then the grant. An acquire gets the answer "wait": one more answer to write, and one more to read. All of
  it delays the next holder. It takes the same time whatever is done inside, so the longer the work, the nearer the
  ratio is to one.
- *Redlock*: the floor is one thread that sends five times and waits for three answers. leasehold does the same, and
  has more to do for each node: what was asked and by whom, whether the node is skipped, what its answer adds up to. And
  each node's script has a token to compare. Where one node is stalled, the first rounds of a trial find that out.
- *Holding*: 10,000 leases of 30 s are 1,000 renewals a second. Each has a command to write, an answer to read, a
  deadline to move and the next renewal to schedule, for a lease that was last used ten seconds ago and has left the
  nearer caches. One hundredth of a core is ten microseconds for each, so this depends on the core.
- *A waiter's memory* under asyncio: the task, the future that it waits for, and the benchmark's own coroutine take 1.1
  KiB, whatever is waited for. The two coroutines of an acquire take 0.6 KiB, since each keeps its frame. The rest is
  the lock object, ticket, lease and attempt, the sleep in the store, and the entries in the tables of both. A test
  counts these bytes. Timers in the watchdog add 0.2 KiB when a waiter has been renewed for the first time.

For the other stores the aim is not a rate, but the number of requests, each of which waits for its answer (the column
**reads**). An acquire and a release are one request each on etcd, ZooKeeper, PostgreSQL and MySQL, as in their floors.
On the two databases each is one statement that changes one row in its place and commits. With one thread the disk hides
much of the client's time. Eight threads of one process share one interpreter lock, so there it counts in full.

With eight threads on two cores the processor limits all of them, so the ratio is that of the processor time of a pair.
See it with `leasehold bench --only mysql-8 --only postgresql-8`, columns client µs and server µs.
"""


def aims(result: Result) -> str:
    """Return a table of aims and results, as Markdown; empty if no measure has an aim."""
    rows = {row.measure.key: row for row in result.rows}
    lines = [line for aim in AIMS if (row := rows.get(aim.measure)) is not None for line in _lines(aim, row)]
    if not lines:
        return ""
    head = ["| measure | compared with | aim | reached |", "| --- | --- | ---: | ---: |"]
    return "\n".join(["## Aims\n", *head, *lines, "", REASONS])


def _lines(aim: Aim, row: Row) -> Iterator[str]:
    ours, floor = row.ours, row.floor
    if ours is None:
        return
    peer = next((one for one in row.entries if one.contestant.key == "redis-py" and one.samples), None)
    redis_py_title = "redis-py Lock"
    if peer is not None and floor is not None and (best := floor.ratio(peer)) is not None:
        redis_py_title += f" (the floor reaches {ratio(best.median)} ×)"
    for least, other, name in ((aim.floor, floor, "the floor"), (aim.redis_py, peer, redis_py_title)):
        reached = ours.ratio(other) if least else None
        if reached is not None:
            yield _line(row, name, f"≥ {least:g} ×", f"{reached.median:.2f} ×", reached.median >= least)
    for most, part in ((aim.p50, "p50"), (aim.p99, "p99")):
        if most and floor is not None:
            times = ours.median(part) / max(floor.median(part), 1e-9)
            yield _line(row, f"{part} of the floor", f"≤ {most:g} ×", f"{times:.1f} ×", times <= most)
    for disturbed in (one for one in row.entries if aim.disturbed and one.contestant.disturbance and one.samples):
        if (rates := ours.ratio(disturbed)) is not None:
            met = rates.median <= aim.disturbed
            name = f"time with one {disturbed.contestant.disturbance}, of that with all"
            yield _line(row, name, f"≤ {aim.disturbed:g} ×", f"{rates.median:.2f} ×", met)
    if row.measure.idle:
        yield from _idle_lines(aim, row, ours)


def _idle_lines(aim: Aim, row: Row, ours: Entry) -> Iterator[str]:
    """Yield the lines about the cost of holding or waiting."""
    for most, name, used, unit in (
        (aim.core * 100, "the client's part of one core", ours.share("client") * 100, "%"),
        (aim.core * 100, "the server's part of one core", ours.share("server") * 100, "%"),
        (aim.memory, "the client's memory for each", ours.median("memory") / 1024, "KiB"),
        (aim.server_bytes, "the server's memory for each", ours.server_bytes, "bytes"),
    ):
        if most:
            yield _line(row, name, f"≤ {most:g} {unit}", f"{_figure(used)} {unit}", used <= most)


def _line(row: Row, compared_with: str, aim: str, reached: str, met: bool) -> str:
    return f"| {row.measure.title} | {compared_with} | {aim} | {reached if met else f'**{reached}**'} |"


def _figure(value: float) -> str:
    """Format a figure with two significant digits, or all digits before the point."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
