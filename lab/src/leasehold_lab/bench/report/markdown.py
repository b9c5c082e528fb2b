"""A run as the page ``docs/performance.md``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from leasehold_lab.bench.report.aims import aims
from leasehold_lab.bench.report.profile_table import where_it_goes
from leasehold_lab.bench.report.table import cells, heads
from leasehold_lab.bench.result import Result, Row

INTRODUCTION = """\
# Performance

All figures here come from one run of `leasehold bench`, which anyone can repeat:

```
pip install 'leasehold[redis,postgres,mysql,zookeeper,etcd,cli]'
python -m venv peers
peers/bin/pip install --upgrade pip
peers/bin/pip install 'redis[hiredis]' python-redis-lock pottery coredis sherlock redlock-ng aioredlock filelock
python -m leasehold_lab.bench.foreign peers/bin
leasehold bench --peers-python peers/bin/python
```

The third command matters: an old pip takes many minutes to find versions that go together. The fifth builds a program
each for Redisson and redsync, where the tools of Java (`java`, `mvn`) and of Go are installed; it may be left out, as
may any library. The last starts a server of each kind that is installed: Redis, five of them for Redlock, PostgreSQL,
MariaDB, ZooKeeper and etcd. With a URL it measures that store alone: `redis:`, `redlock:`, `sqlite:`, `postgresql:` and
`mysql:` (with the tables made before, by `leasehold init URL`), `zookeeper:` or `etcd:`, without TLS.
What it writes there has names that begin with `bench-` or `bench_`, and is deleted at the end.
`--only KEY` chooses measures. `--full` adds 100 processes, 10,000 locks held and 10,000 waiters; `--profile` says where
the time goes; `--report FILE.html` writes a page with charts, `--json` prints every round, `--docs FILE` writes this
page and its picture.

## How to read it

- Rates depend on the machine, and on what else it does. Read the ratios: they are taken between trials of the same
  round, which follow each other; in parentheses stand the lowest and the highest of the rounds.
- The **floor** is what the wire allows: for acquire + release the very bytes that leasehold sends, from a bare socket
  or one hand-written asyncio protocol, with nothing around them; for hand-over one token in a list, passed on by
  `RPUSH` and `BLPOP`, which knows no lease, no token and no loss; for databases two bare write transactions; for
  ZooKeeper a bare create and delete, for etcd a bare put and delete; for Redlock one claim sent to all servers at once
  until the majority has answered, which is the slowest of the three fastest of five single claims. None of them waits
  in a queue or leaves a token. Beside them stand two small writes forced to the disk: a store that promises to keep
  what it said pays for at least that.
- Where one of five servers fails, there is no floor: leasehold is compared with itself on all five. The server is
  killed, or stalled by `SIGSTOP`, when the trial begins, so the moment in which that shows is part of it. What that
  server did is not counted.
- **ours is** says how many times the rate of the others leasehold reaches.
- A wake-up across cores costs two or three times as much as one on the same core, and the kernel's choice differs from
  trial to trial. So a single caller is kept on one core with the server (`--pin`), for all contestants alike.
- **client µs** and **server µs** are processor time for one acquire and release. They suffer less from a busy machine
  than rates do. **reads** is how often the server read from a connection, **commands** what it executed, those inside
  scripts included.
- In hand-over only turns count where the lock went to another contender, and p50 and p99 are from the release to the
  next holder's entry. The contenders watch each other through shared memory: two inside at once would be shown.
- Each contestant must refuse a name that is held, and give it after its release, or its trial fails.
- A library of another language runs in a program of its own, by its language's threads: in Java after a run of five
  seconds, in which the code is compiled, and with what the virtual machine does beside it counted as the client's time;
  in Go by goroutines. These two are not measured in hand-over.
- leasehold has everything on that it promises: lease and renewal, tokens, the queue, server time. Most others have none
  of these. Each is set as its users are told to; see the settings below.
- Servers that are started for the run force to the disk what they have confirmed, as they do by default.
- A dash stands for what is not known: of stores other than Redis **reads** are the requests on the wire, each of which
  waits for its answer, and commands are not counted; **server µs** is known of a server that was started for the run,
  in steps of 10 ms, so it means little in short trials.
"""


PICTURE = "bench.svg"
"""Name of the drawing that stands beside the page."""


def markdown(result: Result) -> str:
    """Return the page."""
    drawing = f"![All measures as bars]({PICTURE})\n"
    parts = [
        INTRODUCTION,
        aims(result),
        where_it_goes(result),
        drawing,
        *map(_section, result.rows),
        "## Settings\n",
        _list(result.settings),
        "## The run\n",
    ]
    parts.append(_list(result.facts))
    if result.missing:
        parts += ["Not measured:\n", _list(result.missing)]
    return "\n".join(parts)


def _section(row: Row) -> str:
    head = ("", *heads(row)[1:])
    lines = [_line(head), _line(["---", *["---:"] * (len(head) - 1)]), *map(_line, cells(row))]
    return f"## {row.measure.title[0].upper()}{row.measure.title[1:]}\n\n" + "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _list(pairs: Mapping[str, str]) -> str:
    return "\n".join(f"- {name}: {text}" for name, text in pairs.items()) + "\n"
