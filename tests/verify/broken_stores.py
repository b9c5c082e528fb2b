"""Three locks with the classic mistakes, as stores of their own, for a check that must find them."""

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
    """A good store; what is not spoilt in a subclass goes on to it."""

    def __init__(self, store: Store, runtime: Runtime) -> None:
        self._store = store
        self._runtime = runtime

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class ForgetsWhoseItIs(Broken):
    """Its release deletes the lock, whoever holds it: no look at the token."""

    async def release(self, name: str, ticket: Ticket, *, reason: ReleaseReason, within: float) -> bool:
        was_there = await self._store.release(name, ticket, reason=reason, within=within)
        if not was_there and reason is ReleaseReason.RELEASE:
            for view in await self._store.inspect(name, exact=True):
                for entry in view.holders:
                    await self._store.release(name, entry.ticket, reason=reason, within=within)
        return was_there


class CountsFromTheReply(Broken):
    """Its lease begins, for the holder, when the reply or the message has come: later than for the server."""

    async def try_acquire(self, name: str, ticket: Ticket, *, join: bool, within: float) -> Granted | Wait:
        answer = await self._store.try_acquire(name, ticket, join=join, within=within)
        return answer._replace(since=self._runtime.now()) if isinstance(answer, Granted) else answer

    async def wait(self, name: str, ticket: Ticket, mark: object, *, timeout: float) -> Granted | None:
        granted = await self._store.wait(name, ticket, mark, timeout=timeout)
        return granted and granted._replace(since=self._runtime.now())


class SleepsOn(Broken):
    """Its waiters subscribe, and do not look whether the lock was handed over before they had."""

    async def wait(self, name: str, ticket: Ticket, mark: object, *, timeout: float) -> Granted | None:
        await self._runtime.sleep(timeout)
        return None


@dataclass(frozen=True)
class Spoils:
    opener: Opener
    how: Callable[[Store, Runtime], Any]

    def open(self, runtime: Runtime, namespace: str) -> Any:
        return self.how(self.opener.open(runtime, namespace), runtime)


def forgets_whose_it_is(url: StoreURL) -> Spoils:
    return Spoils(redis.from_url(replace(url, scheme="redis")), ForgetsWhoseItIs)


def counts_from_the_reply(url: StoreURL) -> Spoils:
    return Spoils(redis.from_url(replace(url, scheme="redis")), CountsFromTheReply)


def sleeps_on(url: StoreURL) -> Spoils:
    return Spoils(redis.from_url(replace(url, scheme="redis")), SleepsOn)
