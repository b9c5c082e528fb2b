"""A run as the page ``docs/performance-details.md``; `summary` makes the short page of it."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from leasehold_lab.bench.report.aims import aims
from leasehold_lab.bench.report.profile_table import where_it_goes
from leasehold_lab.bench.report.table import cells, heads
from leasehold_lab.bench.result import Result, Row

INTRODUCTION = """\
# Performance in detail

All figures of one run of `leasehold bench`. [Performance](performance.md) is the short form.

- [How to read it](#how-to-read-it), the [floors](#floors), and the [settings](#settings) of each library
- [Aims](#aims), and why some are missed
- [Each measure](#measures), with all libraries
- [Where the time goes](#where-the-time-goes)
- [Repeat it](#repeat-it), and [the run](#the-run)

## How to read it

- Rates depend on the machine, and on its other work. Read the ratios: they compare trials of the same round, which run
  one after the other. The lowest and the highest of the rounds are in parentheses.
- The **floor** is the fastest that the protocol allows, see [below](#floors). No floor waits in a queue or leaves a
  token.
- **ours is** shows how many times the rate of the others leasehold reaches.
- **client µs** and **server µs** are processor time for one acquire and release. A busy machine affects them less than
  rates. **reads** is how often the server read from a connection, **commands** what it executed, including those inside
  scripts. For stores other than Redis **reads** are the requests, each of which waits for its answer, and commands are
  not counted. **server µs** is known only for a server that was started for the run; there it is in steps of 10 ms, so
  it means little in short trials. A dash means that a figure is unknown.
- In hand-over only turns count in which the lock went to another contender. p50 and p99 are from the release to the
  next holder's entry. The contenders watch each other through shared memory: it would show two holders at once.
- In leasehold all that it promises is switched on: lease and renewal, tokens, the queue, server time. Most others have
  none of these. Each is set up as its documentation tells its users.
- Each contestant must refuse a name that is held, and grant it after its release, or its trial fails.
- A wake-up across cores costs two or three times as much as one on the same core, and the kernel's choice differs from
  trial to trial. So a single caller is kept on one core with the server (`--pin`), for all contestants alike.
- Servers that are started for the run force to the disk what they have confirmed, as they do by default. Two small
  writes forced to the disk are shown too: a store that promises to keep what it confirmed pays at least that.
- A library of another language runs in a separate program, with its language's threads. Java first runs for five
  seconds, in which the code is compiled; all other work of the virtual machine counts as the client's time. Go uses
  goroutines. In hand-over each contender is a program of its own, at most ten.
- Where one of five servers fails, there is no floor: leasehold is compared with itself on all five. The server is
  killed, or stalled by `SIGSTOP`, when the trial begins, so the time to notice it is included. What that server did is
  not counted.

## Floors

- Acquire + release: the same bytes that leasehold sends, from a bare socket or one hand-written asyncio protocol, with
  nothing around them.
- Hand-over: one token in a list, passed on by `RPUSH` and `BLPOP`, which has no lease, no fencing token and no notice
  of a loss.
- Databases: two bare write transactions.
- ZooKeeper: a bare create and delete.
- etcd: a bare put and delete.
- Redlock: one acquire request sent to all servers at once until the majority has answered. That is the slowest of the
  three fastest of five single requests.
"""

REPEAT = """\
## Repeat it

```
pip install '.[redis,postgres,mysql,zookeeper,etcd,cli]' ./lab    # in a clone
python -m venv peers
peers/bin/pip install --upgrade pip
peers/bin/pip install --group bench    # in a checkout of leasehold: pyproject.toml lists the libraries
python -m leasehold_lab.bench.foreign peers/bin
leasehold bench --peers-python peers/bin/python
```

The third command matters: an old pip takes many minutes to find versions that work together. The fifth builds a program
each for Redisson and redsync, where the tools of Java (`java`, `mvn`) and of Go are installed. You may leave it out,
and any library too.

The last command starts a server of each kind that is installed: Redis, five of them for Redlock, PostgreSQL, MariaDB,
ZooKeeper and etcd. With a URL it measures only that store: `redis:`, `redlock:`, `sqlite:`, `postgresql:` and `mysql:`
(after `leasehold init URL` has created the tables), `zookeeper:` or `etcd:`, without TLS. All names that it writes
there begin with `bench-` or `bench_`, and are deleted at the end.

| option | meaning |
| --- | --- |
| `--quick` | shows a few ratios on Redis and SQLite next to the committed ones; `--write` commits them |
| `--only KEY` | chooses measures |
| `--full` | adds 100 processes, 10,000 locks held and 10,000 waiters |
| `--profile` | shows where the time goes |
| `--report FILE.html` | writes a page with charts |
| `--json` | prints every round |
| `--docs FILE` | writes the short page, and beside it this one and the picture |
"""


def markdown(result: Result) -> str:
    """Return the page of details."""
    parts = [INTRODUCTION, aims(result), "## Measures\n", *map(_section, result.rows), where_it_goes(result)]
    parts += ["## Settings\n", _list(result.settings), REPEAT, "## The run\n", _list(result.facts)]
    if result.missing:
        parts += ["Not measured:\n", _list(result.missing)]
    return "\n".join(parts)


def _section(row: Row) -> str:
    head = ("", *heads(row)[1:])
    lines = [_line(head), _line(["---", *["---:"] * (len(head) - 1)]), *map(_line, cells(row))]
    return f"### {row.measure.title[0].upper()}{row.measure.title[1:]}\n\n" + "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _list(pairs: Mapping[str, str]) -> str:
    return "\n".join(_wrapped(f"- {name}: {text}") for name, text in pairs.items()) + "\n"


def _wrapped(item: str) -> str:
    return textwrap.fill(item, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
