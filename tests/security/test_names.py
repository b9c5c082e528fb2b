"""Names by the million: no two share a key, a node, a row or a lock of a server; on Redis each has one slot.

They are short and of few characters, those by which keys are put together and taken apart among them, so that whatever
may run into one another does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable, Iterator

import pytest

from leasehold._url import parse
from leasehold.stores.etcd.connection.settings import from_url
from leasehold.stores.etcd.keys import Keys
from leasehold.stores.mysql.session_statements import lock_name
from leasehold.stores.postgres.advisory import key_of
from leasehold.stores.redis import keys
from leasehold.stores.zookeeper.nodes import Paths
from support.plugins.tiers import repetitions

COUNT = 1_000_000
"""Pairs of namespace and name by night; by day there are fewer."""

BY_DAY = repetitions(COUNT // 10, COUNT // 100)

SIGNS = ":{}%/.~*?[]\\ \n\x00-_aA1éß中😀"
"""What separates parts somewhere, what is a sign of patterns, what is hard to see, cases, letters of 1 to 4 bytes."""

WORDS = ("lock", "queue", "cell", "7Aookeeper", "zookeeper", "}:lock", "%7B", "%2F", "~cells", "..")

Pair = tuple[str, str]

ETCD = from_url(parse("etcd://h"))


def pairs(count: int, seed: int = 1) -> Iterator[Pair]:
    """Yield different pairs of namespace and name."""
    chance, seen = random.Random(seed), set[Pair]()

    def text() -> str:
        return "".join(chance.choice(WORDS if chance.random() < 0.1 else SIGNS) for _ in range(chance.randint(1, 6)))

    while len(seen) < count:
        pair = text(), text()
        if pair not in seen:
            seen.add(pair)
            yield pair


def slotted(pair: Pair) -> Iterable[Hashable]:
    """Return the keys of a name on Redis, which differ, and have one slot and one name."""
    found = [*keys.shared_keys(*pair), keys.cell_key(*pair), *keys.node_keys(*pair)]
    insides = {key[key.index(b"{") + 1 : key.index(b"}")] for key in found}
    assert len(insides) == 1, "the slot is that of what stands between the first braces"
    assert all(key.count(b"{") == key.count(b"}") == 1 for key in found)
    assert keys.name_of(found[0]) == pair[1]
    return insides


def etcd(pair: Pair) -> Iterable[Hashable]:
    those = Keys.of(ETCD, pair[0])
    return those.queue(pair[1]), those.cell(pair[1]), those.marks(pair[1])


def zookeeper(pair: Pair) -> Iterable[Hashable]:
    those = Paths("", pair[0])
    return those.lock(pair[1]), those.cell(pair[1])


SPELLINGS: dict[str, Callable[[Pair], Iterable[Hashable]]] = {
    "redis": slotted,
    "etcd": etcd,
    "zookeeper": zookeeper,
    "postgresql-session": lambda pair: [key_of(*pair)],
    "mysql-session": lambda pair: [lock_name("db", (pair[0].encode(), pair[1].encode()))],
}
"""What a name is on each system that does not keep namespace and name as they are."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", [BY_DAY, pytest.param(COUNT, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("system", SPELLINGS)
def test_no_two_of_many_names_meet(system: str, count: int) -> None:
    seen, spelled = set[Hashable](), 0
    for pair in pairs(count):
        these = list(SPELLINGS[system](pair))
        spelled += len(these)
        seen.update(these)
    assert len(seen) == spelled


def test_names_that_are_put_together_carelessly_meet() -> None:
    """What would be found: a namespace and a name with a colon between them and no more."""
    assert len({f"{namespace}:{name}" for namespace, name in pairs(50_000)}) < 50_000
