"""leasehold, on ZooKeeper, with a session of 2 s."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from leasehold import AsyncClient, Client
from museum.port import Place, Variant
from museum.subjects import ours
from museum.subjects.kazoo_lock import SESSION, end_session

PACKAGE = "leasehold"


def url(place: Place) -> str:
    return f"zookeeper://127.0.0.1:{place.port}/museum-ours?session_timeout={SESSION:g}"


def session(client: Client | AsyncClient) -> Any:
    """Return the id and password of the session that a client is in."""
    return cast("Any", client.store)._transport._kazoo.client_id


class Blocking(ours.Blocking):
    def __init__(self, place: Place) -> None:
        self._place = place
        self._client = Client.from_url(url(place))

    def lose(self) -> None:
        end_session(self._place, session(self._client))

    def restart(self, meanwhile: Callable[[], object]) -> None:
        self.close()
        meanwhile()
        self._client = Client.from_url(url(self._place))


class Awaiting(ours.Awaiting):
    def __init__(self, place: Place) -> None:
        self._place = place
        self._client = AsyncClient.from_url(url(place))

    async def lose(self) -> None:
        end_session(self._place, session(self._client))

    async def restart(self, meanwhile: Callable[[], object]) -> None:
        await self.close()
        meanwhile()
        self._client = AsyncClient.from_url(url(self._place))


MARK = b"-lock-"

VARIANTS = {
    "blocking": Variant(Blocking, "zookeeper", claim=MARK, leave=MARK, granted=MARK, leases=False),
    "asyncio": Variant(Awaiting, "zookeeper", claim=MARK, leave=MARK, granted=MARK, leases=False),
}
