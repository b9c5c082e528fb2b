"""The kinds of stores that can be measured: their URLs and the modules that they need."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from importlib.util import find_spec

from leasehold._url import parse


class StoreKind(enum.StrEnum):
    """A kind of store."""

    REDIS = "redis"
    REDLOCK = "redlock"
    FILE = "sqlite"
    POSTGRES = "postgresql"
    MYSQL = "mysql"
    ZOOKEEPER = "zookeeper"
    ETCD = "etcd"


@dataclass(frozen=True, slots=True)
class StoreDescription:
    """The description of a kind of store.

    Attributes:
        title: for people.
        schemes: of the URLs that can be measured.
        modules: that must be importable.
        extra: of leasehold, which installs them.

    """

    title: str
    schemes: tuple[str, ...]
    modules: tuple[str, ...] = ()
    extra: str = ""


DESCRIPTIONS = {
    StoreKind.REDIS: StoreDescription("Redis", ("redis", "valkey"), ("redis", "hiredis"), "redis"),
    StoreKind.REDLOCK: StoreDescription("Redlock", ("redlock",), ("redis", "hiredis"), "redis"),
    StoreKind.FILE: StoreDescription("SQLite", ("sqlite",)),
    StoreKind.POSTGRES: StoreDescription("PostgreSQL", ("postgresql", "postgres"), ("psycopg",), "postgres"),
    StoreKind.MYSQL: StoreDescription("MySQL", ("mysql", "mariadb"), ("pymysql",), "mysql"),
    StoreKind.ZOOKEEPER: StoreDescription("ZooKeeper", ("zookeeper",), ("kazoo",), "zookeeper"),
    StoreKind.ETCD: StoreDescription("etcd", ("etcd",), ("h11",), "etcd"),
}


def store_kind_of(url: str) -> StoreKind:
    """Return the kind of store of a URL.

    Raises:
        ValueError: the URL is malformed, or its scheme cannot be measured.

    """
    scheme = parse(url).scheme
    for place, kind in DESCRIPTIONS.items():
        if scheme in kind.schemes:
            return place
    known = ", ".join(f"{one}:" for kind in DESCRIPTIONS.values() for one in kind.schemes)
    raise ValueError(f"a {scheme} URL cannot be measured: the floors only support {known}, without TLS")


def lacks(place: StoreKind) -> str:
    """Return what must be installed to measure a kind of store, as text; empty if nothing is missing."""
    kind = DESCRIPTIONS[place]
    if all(find_spec(module) is not None for module in kind.modules):
        return ""
    return f"no driver; install it with: pip install 'leasehold[{kind.extra}]'"
