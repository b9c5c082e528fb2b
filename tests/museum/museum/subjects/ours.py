"""leasehold, on Redis."""

from __future__ import annotations

from leasehold import AsyncClient, AsyncHold, Client, Hold
from leasehold.stores.redis.scripts import CLAIM, RELEASE
from museum.port import Place, Raw, Variant

PACKAGE = "leasehold"


class Blocking:
    def __init__(self, place: Place) -> None:
        self._client = Client.from_url(place.url)

    def lock(self, name: str, lease: float | None) -> BlockingLock:
        made = self._client.lock(name) if lease is None else self._client.lock(name, lease=lease)
        return BlockingLock(made)

    def fixed(self, name: str, lease: float) -> BlockingLock:
        return BlockingLock(self._client.lock(name, lease=lease, renew=False))

    def body(self, name: str, wait: float) -> bool:
        with self._client.lock(name, timeout=wait):
            return True

    def left(self, name: str) -> float:
        info = self._client.inspect(name)
        return info.holders[0].remaining if info else 0.0

    def close(self) -> None:
        self._client.close()


class BlockingLock(Raw):
    def __init__(self, lock: object) -> None:
        self._lock = lock
        self._hold: Hold | None = None
        self._told = False

    def acquire(self, wait: float | None) -> bool:
        self._hold = self._lock.acquire(timeout=wait)  # type: ignore[attr-defined]
        if self._hold is not None:
            self._hold.on_lost(lambda _: setattr(self, "_told", True))
        return self._hold is not None

    def release(self) -> None:
        assert self._hold is not None
        self._hold.release()

    def valid(self) -> bool:
        return self._hold is not None and not self._hold.lost

    @property
    def token(self) -> int | None:
        return self._hold and self._hold.token

    @property
    def told(self) -> bool:
        return self._told

    def alongside(self) -> BlockingLock:
        return BlockingLock(self._lock)


class Awaiting:
    def __init__(self, place: Place) -> None:
        self._client = AsyncClient.from_url(place.url)

    def lock(self, name: str, lease: float | None) -> AwaitingLock:
        made = self._client.lock(name) if lease is None else self._client.lock(name, lease=lease)
        return AwaitingLock(made)

    def fixed(self, name: str, lease: float) -> AwaitingLock:
        return AwaitingLock(self._client.lock(name, lease=lease, renew=False))

    async def body(self, name: str, wait: float) -> bool:
        async with self._client.lock(name, timeout=wait):
            return True

    async def left(self, name: str) -> float:
        info = await self._client.inspect(name)
        return info.holders[0].remaining if info else 0.0

    async def close(self) -> None:
        await self._client.close()


class AwaitingLock(Raw):
    def __init__(self, lock: object) -> None:
        self._lock = lock
        self._hold: AsyncHold | None = None
        self._told = False

    async def acquire(self, wait: float | None) -> bool:
        self._hold = await self._lock.acquire(timeout=wait)  # type: ignore[attr-defined]
        if self._hold is not None:
            self._hold.on_lost(lambda _: setattr(self, "_told", True))
        return self._hold is not None

    async def release(self) -> None:
        assert self._hold is not None
        await self._hold.release()

    async def valid(self) -> bool:
        return self._hold is not None and not self._hold.lost

    @property
    def token(self) -> int | None:
        return self._hold and self._hold.token

    @property
    def told(self) -> bool:
        return self._told

    def alongside(self) -> AwaitingLock:
        return AwaitingLock(self._lock)


CLAIMED, LEFT = CLAIM.digest, RELEASE.digest

VARIANTS = {
    "blocking": Variant(Blocking, claim=CLAIMED, leave=LEFT, wakes=b"SUBSCRIBE"),
    "asyncio": Variant(Awaiting, claim=CLAIMED, leave=LEFT, wakes=b"SUBSCRIBE"),
}
