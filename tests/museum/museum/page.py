"""The page ``docs/museum.md``: a table of verdicts and the observations. A run writes it, and tests read it."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field

from museum.catalogue import EXHIBITS, Seen, Verdict

SIGNS = {Verdict.SOUND: "✓", Verdict.PARTLY: "~", Verdict.EXPOSED: "✗", Verdict.NOT_APPLICABLE: "·"}

PROJECTS = {
    "aioredis": "aio-libs-abandoned/aioredis-py",
    "aredis": "NoneGG/aredis",
    "celery-once": "cameronmaske/celery-once",
    "dogpile.cache": "sqlalchemy/dogpile.cache",
    "etcd3": "kragniz/python-etcd3",
    "filelock": "tox-dev/filelock",
    "kazoo": "python-zk/kazoo",
    "node-redlock": "mike-marcacci/node-redlock",
    "portalocker": "wolph/portalocker",
    "psycopg2": "psycopg/psycopg2",
    "pulpcore": "pulp/pulpcore",
    "python-redis-lock": "ionelmc/python-redis-lock",
    "redbeat": "sibson/redbeat",
    "redis-lock-py": "miintto/redis-lock-py",
    "redis-py": "redis/redis-py",
    "Redisson": "redisson/redisson",
}
"""The repository of each project on GitHub."""

VARYING = {("aioredlock asyncio", "cancelled-acquire")}
"""Verdicts that depend on the load: sound on an idle machine, partly on a busy one. The page says so, and the tests do
not compare them."""

HEAD = """\
# The bug museum

Locks break in known ways. Each row is one such way, as a scenario of
[tests/museum](../tests/museum/museum/scenarios.py): the scenario runs against a lock on a real server, and checks the
result from outside. Every build runs all of them on leasehold, where each must end sound. Other libraries run the very
same scenarios, with the same faults and the same settings where they have them. Everything said of them here was
observed by the run that wrote this page, with the versions named.

The scenarios come from defects that users reported, so this is no measure of a library as a whole. Much of what is
observed is documented by its authors, or was never promised. Several of these libraries aim at efficiency on one server
and say so, and each has strengths that do not appear here. If a version does better, or we call a library wrongly, the
page is wrong: the command below shows it.

| | |
|---|---|
| ✓ | sound: the scenario observed what it asks for |
| ~ | partly: no harm beyond a bounded time, or an error that reports less than it could |
| ✗ | exposed: the scenario observed what it warns of |
| · | does not apply |
"""

REPEAT = """\
## Repeat it

The tests look for each library in the given interpreters, and use the first that has it; none of them becomes a
dependency. Some need an older redis-py, so there are two environments:

```sh
python -m venv /tmp/newer && /tmp/newer/bin/pip install redis coredis python-redis-lock pottery filelock kazoo
python -m venv /tmp/older && /tmp/older/bin/pip install 'redis<6' redlock-ng sherlock aioredlock setuptools

pytest tests/museum                                                            # leasehold
pytest tests/museum --peers /tmp/newer/bin/python --peers /tmp/older/bin/python  # and the others, against this page
pytest tests/museum --peers … --write-museum                                   # and write this page
```

Without `--peers`, `LEASEHOLD_PEERS` may name the interpreters, separated by colons. The tests report what is missing.
"""


@dataclass(slots=True)
class Column:
    """One lock on show: its title with flavor, its version, and what was seen by scenario."""

    title: str
    version: str
    seen: dict[str, Seen] = field(default_factory=dict)


def written(columns: Sequence[Column]) -> str:
    """Return the page."""
    return "\n".join((HEAD, table(columns), "", *details(columns), REPEAT))


def table(columns: Sequence[Column]) -> str:
    lines = ["| scenario | " + " | ".join(f"{one.title}<br>{one.version}" for one in columns) + " |"]
    lines.append("|---|" + ":-:|" * len(columns))
    for name, exhibit in EXHIBITS.items():
        signs = " | ".join(SIGNS[one.seen[name].verdict] if name in one.seen else "?" for one in columns)
        lines.append(f"| [{exhibit.title}](#{name}) | {signs} |")
    return "\n".join(lines)


def details(columns: Sequence[Column]) -> list[str]:
    """Return a section for each scenario: its description, reports of the defect, and what each lock did."""
    lines: list[str] = ["## What was observed", ""]
    for name, exhibit in EXHIBITS.items():
        lines += [f"### {name}", "", f"*{exhibit.title[0].upper()}{exhibit.title[1:]}.* {exhibit.what}", ""]
        if exhibit.known:
            lines += [f"Reports of this kind are, among others, {', '.join(map(link, exhibit.known))}.", ""]
        alike: dict[tuple[Verdict, str], list[str]] = {}
        for one in columns:
            if name in one.seen and one.seen[name].verdict is not Verdict.NOT_APPLICABLE:
                alike.setdefault((one.seen[name].verdict, one.seen[name].words), []).append(
                    f"{one.title} (differs from run to run)" if (one.title, name) in VARYING else one.title
                )
        lines += [f"- {SIGNS[verdict]} {', '.join(titles)}: {words}" for (verdict, words), titles in alike.items()]
        lines.append("")
    return [wrapped(line) for line in lines]


def wrapped(line: str) -> str:
    """Return a paragraph or an item of a list in lines of at most 120 characters."""
    indent = "  " if line.startswith("- ") else ""
    return textwrap.fill(line, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def link(known: str) -> str:
    """Return a link to where a defect was reported."""
    project, _, number = known.partition(" #")
    if known.startswith("CURATOR-"):
        return f"[{known}](https://issues.apache.org/jira/browse/{known})"
    if known.startswith("CVE-"):
        return f"[{known}](https://nvd.nist.gov/vuln/detail/{known})"
    return f"[{known}](https://github.com/{PROJECTS[project]}/issues/{number})"


def read(text: str) -> dict[str, dict[str, str]]:
    """Return the signs of the table: by column's head (title and version), by scenario."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if re.match(r"\| (scenario|\[)", line)]
    heads, found = rows[0][1:], {}
    for column, head in enumerate(heads, 1):
        found[head] = {re.sub(r".*\(#(.*)\)", r"\1", row[0]): row[column] for row in rows[1:]}
    return found
