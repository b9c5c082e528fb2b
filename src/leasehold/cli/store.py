"""The store of a command: its client, opened for the length of the command, and its URL."""

from __future__ import annotations

import logging
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from leasehold import Client
from leasehold._inspection import LockInfo
from leasehold._model import RESPONSE_TIMEOUT
from leasehold._runtimes.base import run_sync
from leasehold.errors import NameInUse, Unsupported
from leasehold.primitives.coordination.leadership import ELECTION
from leasehold.stores._common.names import before


@contextmanager
def connected(url: str | None, namespace: str, *, response_timeout: float = RESPONSE_TIMEOUT) -> Generator[Client]:
    """Yield a client. The library's log stays off the terminal, since a command prints itself what happened."""
    silence_logging()
    with Client.from_url(url, namespace=namespace, response_timeout=response_timeout) as client:
        yield client


def with_leaders(client: Client, infos: list[LockInfo]) -> list[LockInfo]:
    """Set each leader's meta to the value that it proclaimed last, not the one with which it campaigned."""
    return [_led(client, info) if info.name.startswith(f"{ELECTION}/") else info for info in infos]


def _led(client: Client, info: LockInfo) -> LockInfo:
    try:
        leader = client.election(info.name.removeprefix(f"{ELECTION}/")).leader()
    except (ValueError, Unsupported, NameInUse):  # a lock that is only called like one
        return info
    holders = tuple(
        replace(holder, meta=leader.value) if leader is not None and leader.token == holder.token else holder
        for holder in info.holders
    )
    return replace(info, kind=ELECTION, holders=holders)


def of_others(client: Client, namespace: str, prefix: str, *, exact: bool = False) -> list[str]:
    """Describe the locks of other libraries whose keys begin with ``prefix``, or are it, in a namespace.

    Only on one Redis server without a layout: elsewhere there are none, or they are listed.
    """
    store: Any = client._core._engine.store
    redis = sys.modules.get("leasehold.stores.redis.store")
    if redis is None or not isinstance(store, redis.RedisStore) or hasattr(store, "layout"):
        return []
    from leasehold.stores.redis.doctor.foreign import look

    return run_sync(look(store.transport, before(namespace) + prefix, exact=exact))


def silence_logging() -> None:
    """Keep the library's log off standard error."""
    log = logging.getLogger("leasehold")
    log.addHandler(logging.NullHandler())
    log.propagate = False
