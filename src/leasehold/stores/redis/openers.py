"""The Redis store (Redis 6.2 or later, Valkey): one server, those under Sentinel, a cluster, or several by Redlock.

Modules that only some deployments need are imported when such a store is opened, so that programs start fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from leasehold._runtimes.base import Flavor, Runtime
from leasehold._url import Secret, StoreURL, Veiled, parse
from leasehold.store_api import Opener
from leasehold.stores.redis.connection import adopting, settings
from leasehold.stores.redis.connection.settings import URL_OPTIONS, Settings
from leasehold.stores.redis.store import RedisStore
from leasehold.stores.redis.strict import strict
from leasehold.stores.redis.strict.quorum import Strict

if TYPE_CHECKING:
    from leasehold.stores.redis.cluster.store import ClusterStore
    from leasehold.stores.redis.redlock.node import Member
    from leasehold.stores.redis.redlock.store import RedlockStore
    from leasehold.stores.redis.sentinel.sentinel import SentinelSettings
    from leasehold.stores.redis.sentinel.store import SentinelStore

KINDS = ("redis", "rediss", "valkey", "valkeys")

REDLOCK_SCHEMES = ("redlock", "redlocks")

NODE_SCHEMES = ("unix", *(kind + deployed for kind in KINDS for deployed in ("", "+sentinel", "+cluster")))
"""Schemes of Redis URLs. A node of a Redlock is one of these, but no cluster, which has an error of its own."""

NODE_URLS = "pass redis:// or redis+sentinel:// URLs"

SENTINEL_PORT = 26379
SERVER_PORT = 6379

SENTINEL_OPTIONS = ("sentinel_username", "sentinel_password")

FEWEST_NODES = 3
"""With two nodes both must answer, which is worse than one server."""

LONGEST_QUARANTINE = 7 * 86_400.0
"""Seconds; as long as the longest lease."""


@dataclass(frozen=True)
class Redis:
    """Opens the locks of one server."""

    settings: Settings

    def open(self, runtime: Runtime, namespace: str) -> RedisStore:
        """Open the store; it connects at the first use."""
        return RedisStore(runtime, self.settings, namespace)


@dataclass(frozen=True)
class Sentinel:
    """Opens the locks of the primary that sentinels name."""

    watched: SentinelSettings

    def open(self, runtime: Runtime, namespace: str) -> SentinelStore:
        """Open the store; it connects at the first use."""
        from leasehold.stores.redis.sentinel.store import SentinelStore

        return SentinelStore(runtime, self.watched, namespace)


@dataclass(frozen=True)
class Cluster:
    """Opens the locks of a cluster."""

    seeds: Sequence[Settings]

    def open(self, runtime: Runtime, namespace: str) -> ClusterStore:
        """Open the store; it connects at the first use."""
        from leasehold.stores.redis.cluster.store import ClusterStore

        return ClusterStore(runtime, self.seeds, namespace)


class Redlock:
    """Opens the locks of several independent servers, of which a majority must agree.

    Example:
        ```python
        Client(Redlock(["redis://a", "redis://b", "redis+sentinel://c,d,e/locks"]))
        ```
    """

    def __init__(self, members: Sequence[str | Secret | Opener], *, quarantine: float = 0.0) -> None:
        """Check the arguments, without a connection.

        Args:
            members: the nodes: URLs (``redis://``, ``rediss://``, ``unix://``, ``redis+sentinel://``), or what
                `Redis`, `Sentinel` or `adopt` make.
            quarantine: seconds for which a node gives no votes after it was restarted or emptied; 0 for none. No lease
                may be longer. It must be the same for all clients.
        """
        hidden = [Secret(each) if isinstance(each, str) else each for each in members]
        del members  # they may have passwords
        self._members = [_member(each) for each in hidden]
        places = [member.settings.where for member in self._members]
        if len(places) < FEWEST_NODES:
            raise ValueError(
                f"Redlock takes {FEWEST_NODES} nodes or more, best {FEWEST_NODES} or 5, not {len(places)}; "
                "for one server write the URL as redis://HOST"
            )
        if twice := next((place for place in places if places.count(place) > 1), None):
            raise ValueError(
                f"the node {twice} is there twice; name it once in the URL: each node must be another server"
            )
        if not 0 <= quarantine <= LONGEST_QUARANTINE:
            raise ValueError(f"option quarantine is from 0 to {LONGEST_QUARANTINE:.0f} s, not {quarantine}")
        self._quarantine = quarantine

    def open(self, runtime: Runtime, namespace: str) -> RedlockStore:
        """Open the store; it connects at the first use."""
        from leasehold.stores.redis.redlock.store import RedlockStore

        return RedlockStore(runtime, self._members, namespace, quarantine=self._quarantine)


def _member(given: Secret | Opener) -> Member:
    from leasehold.stores.redis.redlock.node import Single, TrackedPrimary

    if isinstance(given, Secret):
        url = parse(given)
        if url.scheme not in (*NODE_SCHEMES, *REDLOCK_SCHEMES):
            raise ValueError(f"a node of Redlock is a Redis server, which {url.scheme}: is not; {NODE_URLS}")
        given = from_url(url)
    if isinstance(given, Cluster):
        raise ValueError(
            "a node of Redlock cannot be a whole cluster; use the cluster alone (redis+cluster://), or pass single "
            "servers (redis://) or Sentinel groups (redis+sentinel://) as nodes"
        )
    if not isinstance(given, Redis | Sentinel):
        kind = type(given).__name__
        raise TypeError(f"a node of Redlock is one server or a Sentinel group, not a {kind}; {NODE_URLS}")
    member = Single(given.settings) if isinstance(given, Redis) else TrackedPrimary(given.watched)
    if member.settings.strict is not None:
        raise ValueError("a node of Redlock has no strict mode; leave out strict=true and pass quarantine= to Redlock")
    return member


def _redlock_from_url(url: StoreURL) -> Redlock:
    """Read ``redlock://user:password@h1,h2,h3/0?quarantine=60``; ``redlocks`` is the same with TLS.

    Or ``redlock:URL|URL|URL|?quarantine=60``, where each node has a URL of its own.
    """
    if url.members:
        if url.scheme != "redlock":
            raise ValueError(
                "each URL in redlock:URL|URL|URL says itself whether it uses TLS; write redlock: before them"
            )
        url.refuse_options(("quarantine",))
        nodes: Sequence[Secret | Opener] = url.members
    else:
        nodes = [Redis(each) for each in nodes_from_url(url)]
    text = url.options.get("quarantine", "0")
    try:
        quarantine = float(text)
    except ValueError:
        raise ValueError(f"option 'quarantine' of the {url.scheme} URL is a number of seconds, as in 60") from None
    return Redlock(nodes, quarantine=quarantine)


def from_url(url: StoreURL) -> Opener:
    """Read a URL: ``redis://``, ``rediss://``, ``unix://``, ``redis+sentinel://``, ``redis+cluster://``.

    Each also with ``rediss`` for TLS, and with ``valkey`` or ``valkeys``; and ``redlock://``, ``redlocks://``.
    """
    if url.scheme in REDLOCK_SCHEMES:
        return _redlock_from_url(url)
    deployed = url.scheme.partition("+")[2]
    common = [option for option in URL_OPTIONS if option != "db" or deployed != "cluster"]
    own = SENTINEL_OPTIONS if deployed == "sentinel" else ()
    settings.check_options(url, (*common, *strict.OPTIONS, *own))
    demanded, url = strict.from_url(url)
    match deployed:
        case "sentinel":
            return _in_strict_mode(Sentinel(sentinels_from_url(url)), demanded)
        case "cluster":
            return _in_strict_mode(Cluster(seeds_from_url(url)), demanded)
        case _:
            return _in_strict_mode(Redis(settings.from_url(url)), demanded)


def adopt(client: Any, flavor: Flavor, *, strict: Strict | None = None) -> Opener:
    """Reach the servers as ``client`` does: a ``Redis``, ``RedisCluster`` or ``Sentinel`` of redis or redis.asyncio.

    ``Client(adopt(client, Flavor.SYNC, strict=Strict(longest=30)))`` does so in strict mode.
    """
    if adopting.asks_sentinels(client):
        return _in_strict_mode(Sentinel(adopting.watched(client, flavor)), strict)
    if isinstance(client, adopting.CLUSTERS):
        return _in_strict_mode(Cluster(adopting.seeds(client, flavor)), strict)
    return _in_strict_mode(Redis(adopting.from_client(client, flavor)), strict)


def _in_strict_mode(opener: Redis | Sentinel | Cluster, demanded: Strict | None) -> Redis | Sentinel | Cluster:
    """Return the opener, in strict mode if that is demanded."""
    if demanded is None:
        return opener
    match opener:
        case Redis(server):
            return Redis(replace(server, strict=demanded))
        case Sentinel(watched):
            return Sentinel(replace(watched, server=replace(watched.server, strict=demanded)))
        case Cluster(seeds):
            return Cluster([replace(seed, strict=demanded) for seed in seeds])


def adopt_all(clients: Sequence[Any], flavor: Flavor, *, strict: Strict | None = None) -> Opener:
    """Reach the nodes of a Redlock as ``clients`` do, one for each node."""
    return Redlock([adopt(client, flavor, strict=strict) for client in clients])


def sentinels_from_url(url: StoreURL) -> SentinelSettings:
    """Parse ``redis+sentinel://user:password@h1,h2,h3/name/0?sentinel_password=...``, and the same with TLS.

    Raises:
        ValueError: it names no sentinel or no primary.
    """
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
    from leasehold.stores.redis.sentinel.sentinel import SentinelSettings

    return SentinelSettings(name, _one_host_each(who, SENTINEL_PORT, "sentinel"), server)


def seeds_from_url(url: StoreURL) -> Sequence[Settings]:
    """Read ``redis+cluster://user:password@h1,h2``, and the same with TLS: the nodes that are asked for the slot map.

    Raises:
        ValueError: it names no node, or a database: a cluster has only database 0.
    """
    if not url.hosts:
        raise ValueError(f"the {url.scheme} URL names no node; write it as {url.scheme}://HOST:PORT,HOST:PORT")
    if url.path not in ("", "0"):
        raise ValueError(f"a {url.scheme} URL has no path: a cluster has only database 0")
    return _one_host_each(replace(url, path=""), SERVER_PORT, "cluster")


def nodes_from_url(url: StoreURL) -> Sequence[Settings]:
    """Read ``redlock://user:password@h1,h2,h3/0``, and ``redlocks`` with TLS: independent servers.

    Raises:
        ValueError: it names no node, or has an unknown option.
    """
    settings.check_options(url, (*URL_OPTIONS, "quarantine"))
    if not url.hosts:
        raise ValueError(
            f"the {url.scheme} URL names no node; write it as {url.scheme}://HOST:PORT,HOST:PORT,HOST:PORT"
        )
    options = Veiled({key: value for key, value in url.options.items() if key != "quarantine"})
    scheme = "rediss" if url.scheme == "redlocks" else "redis"
    return [settings.from_url(replace(url, scheme=scheme, hosts=(host,), options=options)) for host in url.hosts]


def _one_host_each(url: StoreURL, port: int, mode: str) -> Sequence[Settings]:
    hosts = dict.fromkeys((host, given or port) for host, given in url.hosts)
    found = [settings.from_url(replace(url, hosts=(host,))) for host in hosts]
    return [replace(each, mode=mode) for each in found]
