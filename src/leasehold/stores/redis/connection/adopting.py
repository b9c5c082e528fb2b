"""Settings taken from a user's own redis-py client: of one server, Sentinel or Cluster."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.sentinel
import redis.cluster
import redis.sentinel

from leasehold._runtimes.base import Flavor, call_user_code
from leasehold._url import Veiled, address
from leasehold.stores.redis.connection.settings import KEPT, PROVIDER_FAILED, Settings

if TYPE_CHECKING:
    from leasehold.stores.redis.sentinel.sentinel import SentinelSettings

SENTINELS = (redis.sentinel.Sentinel, redis.asyncio.sentinel.Sentinel)
POOLS = (redis.sentinel.SentinelConnectionPool, redis.asyncio.sentinel.SentinelConnectionPool)
CLUSTERS = (redis.cluster.RedisCluster, redis.asyncio.cluster.RedisCluster)
ASYNCHRONOUS = (redis.asyncio.sentinel.Sentinel, redis.asyncio.cluster.RedisCluster, redis.asyncio.Redis)
ENCRYPTED = (redis.SSLConnection, redis.asyncio.SSLConnection)


def from_client(client: Any, flavor: Flavor) -> Settings:
    """Return how a client of redis-py reaches its server.

    Raises:
        TypeError: it is of the other flavor, or not a client of one server.
    """
    if not isinstance(client, redis.Redis | redis.asyncio.Redis):
        raise TypeError(
            f"cannot make locks from a {type(client).__name__}; pass a Redis, RedisCluster or Sentinel of redis, or "
            "for an AsyncClient of redis.asyncio"
        )
    check_flavor(client, flavor)
    pool = client.connection_pool
    options = _kept(pool.connection_kwargs, KEPT)
    where = options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"
    return Settings(str(where), "unix" if "path" in options else "tcp", options, {flavor: pool.connection_class})


def asks_sentinels(client: Any) -> bool:
    """Return whether ``client`` is a ``Sentinel``, or was made by its ``master_for``."""
    return isinstance(client, SENTINELS) or isinstance(getattr(client, "connection_pool", None), POOLS)


def watched(client: Any, flavor: Flavor) -> SentinelSettings:
    """Return how a ``Sentinel``, or a client made by its ``master_for``, finds and reaches the primary.

    Raises:
        TypeError: it is of the other flavor, or one for replicas.
    """
    check_flavor(client, flavor)
    if isinstance(client, SENTINELS):
        asked: Any = client
        options: Any = asked.connection_kwargs
        name: str | None = None
        encrypted = bool(options.get("ssl"))
    else:
        pool: Any = client.connection_pool
        if not pool.is_master:
            raise TypeError("cannot make locks from a client for replicas; pass one made with master_for(NAME)")
        options, asked, name = pool.connection_kwargs, pool.sentinel_manager, pool.service_name
        encrypted = issubclass(pool.connection_class, ENCRYPTED)
    sentinels = [replace(from_client(each, flavor), mode="sentinel") for each in asked.sentinels]
    from leasehold.stores.redis.sentinel.sentinel import SentinelSettings

    return SentinelSettings(name, sentinels, _plain(options, "tls" if encrypted else "tcp"))


def seeds(client: Any, flavor: Flavor) -> Sequence[Settings]:
    """Return how a ``RedisCluster`` reaches its nodes.

    Raises:
        TypeError: it is of the other flavor, or translates the addresses of nodes.
    """
    check_flavor(client, flavor)
    if getattr(client.nodes_manager, "address_remap", None) is not None:
        raise TypeError(
            "cannot make locks from a RedisCluster with address_remap=, since leasehold connects to the addresses that "
            "nodes announce; let them announce reachable ones (cluster-announce-ip, cluster-announce-hostname)"
        )
    nodes = {(node.host, int(node.port)): node for node in _nodes(client)}
    if isinstance(client, redis.cluster.RedisCluster):
        known = next((node.redis_connection for node in nodes.values() if node.redis_connection is not None), None)
        base = _plain({}, "tcp") if known is None else from_client(known, flavor)
    else:
        cls = client.connection_kwargs.get("connection_class", redis.asyncio.Connection)
        base = replace(_plain(client.connection_kwargs, "tcp"), classes={flavor: cls})
    return [replace(base.at(host, port), mode="cluster") for host, port in nodes]


def check_flavor(client: Any, flavor: Flavor) -> None:
    """Raise TypeError if a client is of the other flavor."""
    if isinstance(client, ASYNCHRONOUS) is not (flavor is Flavor.ASYNC):
        kind = (
            "RedisCluster" if isinstance(client, CLUSTERS) else "Sentinel" if isinstance(client, SENTINELS) else "Redis"
        )
        wanted = f"Client with redis.{kind}, AsyncClient with redis.asyncio.{kind}"
        raise TypeError(f"a {type(client).__module__}.{type(client).__name__} does not fit this client; use {wanted}")


def _nodes(client: Any) -> list[Any]:
    cache = client.nodes_manager.nodes_cache.values()
    startup = client.nodes_manager.startup_nodes.values()
    return [*cache, *startup]


def _plain(options: Any, kind: str) -> Settings:
    kept = _kept(options, [key for key in KEPT if key not in ("host", "port", "path")])
    return Settings(address("?", 0), kind, kept)


def _kept(options: Any, keys: Sequence[str]) -> Veiled:
    kept = Veiled((key, options[key]) for key in keys if key in options)
    if (provider := kept.get("credential_provider")) is not None:
        kept["credential_provider"] = UserProvider(provider)
    return kept


OWN_CLIENT = "a credential provider uses the client that it connects; use another client in it"


class UserProvider(redis.CredentialProvider):
    """A user's credential provider, which may use another client of ours: to fetch a token once for all.

    Whatever it raises becomes an error of redis-py: then a service of tokens that is down is waited out like a server.
    """

    def __init__(self, theirs: Any) -> None:
        self._theirs = theirs

    def get_credentials(self) -> Any:
        frame, ours = sys._getframe().f_back, UserProvider.get_credentials.__code__
        while frame is not None:
            if frame.f_code is ours and frame.f_locals["self"]._theirs is self._theirs:
                # Each connection would need another one before it, until the server accepts no more.
                raise RuntimeError(OWN_CLIENT)
            frame = frame.f_back
        try:
            return call_user_code(self._theirs.get_credentials)
        except Exception as error:
            failed = _of_provider(error)
        raise failed

    async def get_credentials_async(self) -> Any:
        try:
            return await self._theirs.get_credentials_async()
        except Exception as error:
            failed = _of_provider(error)
        raise failed


def _of_provider(error: Exception) -> Exception:
    """Return the error of a connection whose provider raised ``error``: with the first line of its text, not a page."""
    if error.args == (OWN_CLIENT,):
        return error
    return redis.RedisError(f"{PROVIDER_FAILED}: {type(error).__name__}: {str(error).partition(chr(10))[0][:200]}")
