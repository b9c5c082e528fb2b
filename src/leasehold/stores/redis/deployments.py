"""URLs that name several servers: Sentinel, Cluster and Redlock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from leasehold._url import Secret, StoreURL, Veiled
from leasehold.stores.redis.connection import settings
from leasehold.stores.redis.connection.settings import URL_OPTIONS, Settings
from leasehold.stores.redis.sentinel.sentinel import SentinelSettings

SENTINEL_PORT = 26379
SERVER_PORT = 6379

SENTINEL_OPTIONS = ("sentinel_username", "sentinel_password")


def sentinels_from_url(url: StoreURL) -> SentinelSettings:
    """Parse ``redis+sentinel://user:password@h1,h2,h3/name/0?sentinel_password=...``, and the same with TLS.

    Raises:
        ValueError: it names no sentinel or no primary, or has an unknown option.

    """
    url.refuse_options((*URL_OPTIONS, *SENTINEL_OPTIONS))
    form = f"{url.scheme}://HOST:PORT,HOST:PORT/NAME"
    if not url.hosts:
        raise ValueError(f"the {url.scheme} URL names no sentinel; write it as {form}")
    name, _, database = url.path.partition("/")
    if not name:
        raise ValueError(f"the {url.scheme} URL does not give the sentinels' name of the primary; write it as {form}")
    common = {key: value for key, value in url.options.items() if key not in SENTINEL_OPTIONS}
    server = settings.from_url(replace(url, hosts=url.hosts[:1], path=database, options=Veiled(common)))
    who = replace(
        url,
        username=url.options.get("sentinel_username"),
        password=Secret(url.options["sentinel_password"]) if "sentinel_password" in url.options else None,
        path="",
        options=Veiled({key: value for key, value in common.items() if key != "db"}),
    )
    return SentinelSettings(name, _each(who, SENTINEL_PORT, "sentinel"), server)


def seeds_from_url(url: StoreURL) -> Sequence[Settings]:
    """Read ``redis+cluster://user:password@h1,h2``, and the same with TLS: the nodes that are asked for the slot map.

    Raises:
        ValueError: it names no node, or a database: a cluster has only database 0.

    """
    url.refuse_options(tuple(option for option in URL_OPTIONS if option != "db"))
    if not url.hosts:
        raise ValueError(f"the {url.scheme} URL names no node; write it as {url.scheme}://HOST:PORT,HOST:PORT")
    if url.path not in ("", "0"):
        raise ValueError(f"a {url.scheme} URL has no path: a cluster has only database 0")
    return _each(replace(url, path=""), SERVER_PORT, "cluster")


def nodes_from_url(url: StoreURL) -> Sequence[Settings]:
    """Read ``redlock://user:password@h1,h2,h3/0``, and ``redlocks`` with TLS: independent servers.

    Raises:
        ValueError: it names no node, or has an unknown option.

    """
    url.refuse_options((*URL_OPTIONS, "quarantine"))
    if not url.hosts:
        raise ValueError(
            f"the {url.scheme} URL names no node; write it as {url.scheme}://HOST:PORT,HOST:PORT,HOST:PORT"
        )
    options = Veiled({key: value for key, value in url.options.items() if key != "quarantine"})
    scheme = "rediss" if url.scheme == "redlocks" else "redis"
    return [settings.from_url(replace(url, scheme=scheme, hosts=(host,), options=options)) for host in url.hosts]


def _each(url: StoreURL, port: int, mode: str) -> Sequence[Settings]:
    hosts = dict.fromkeys((host, given or port) for host, given in url.hosts)
    found = [settings.from_url(replace(url, hosts=(host,))) for host in hosts]
    return [replace(each, mode=mode) for each in found]
