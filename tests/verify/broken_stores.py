"""Three stores with classic mistakes, which `leasehold verify` must find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from leasehold._model import Granted, ReleaseReason, Ticket, Wait
from leasehold._runtimes.base import Runtime
from leasehold._url import StoreURL
from leasehold.store_api import Opener, Store
from leasehold.stores.redis import openers as redis


class Broken:
    """Wraps a correct store; a subclass breaks one method."""

    def __init__(self, store: Store, runtime: Runtime) -> None:
        self._store = store
        self._runtime = runtime

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class ReleasesAnyHolder(Broken):
    """Its release deletes the lock of any holder, without a check of the ticket."""

    async def release(self, name: str, ticket: Ticket, *, reason: ReleaseReason, within: float) -> bool:
        was_there = await self._store.release(name, ticket, reason=reason, within=within)
        if not was_there and reason is ReleaseReason.RELEASE:
            for view in await self._store.inspect(name, exact=True):
                for entry in view.holders:
                    await self._store.release(name, entry.ticket, reason=reason, within=within)
        return was_there


class CountsFromTheReply(Broken):
    """Its holder counts the lease from the arrival of the reply or the message: later than the server does."""

    async def try_acquire(self, name: str, ticket: Ticket, *, join: bool, within: float) -> Granted | Wait:
        answer = await self._store.try_acquire(name, ticket, join=join, within=within)
        return answer._replace(since=self._runtime.now()) if isinstance(answer, Granted) else answer

    async def wait(self, name: str, ticket: Ticket, mark: object, *, timeout: float) -> Granted | None:
        granted = await self._store.wait(name, ticket, mark, timeout=timeout)
        return granted and granted._replace(since=self._runtime.now())


class MissesEarlyReleases(Broken):
    """Its waiters do not check after subscribing whether the lock was released before."""

    async def wait(self, name: str, ticket: Ticket, mark: object, *, timeout: float) -> Granted | None:
        await self._runtime.sleep(timeout)
        return None


@dataclass(frozen=True)
class BrokenOpener:
    opener: Opener
    wrap: Callable[[Store, Runtime], Any]

    def open(self, runtime: Runtime, namespace: str) -> Any:
        return self.wrap(self.opener.open(runtime, namespace), runtime)


def releases_any_holder(url: StoreURL) -> BrokenOpener:
    return BrokenOpener(redis.from_url(replace(url, scheme="redis")), ReleasesAnyHolder)


def counts_from_the_reply(url: StoreURL) -> BrokenOpener:
    return BrokenOpener(redis.from_url(replace(url, scheme="redis")), CountsFromTheReply)


def misses_early_releases(url: StoreURL) -> BrokenOpener:
    return BrokenOpener(redis.from_url(replace(url, scheme="redis")), MissesEarlyReleases)
