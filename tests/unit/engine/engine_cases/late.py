"""What the tests of late grants and losses share."""

from __future__ import annotations

import itertools

from leasehold import AsyncClient
from leasehold.stores.memory import Memory

numbers = itertools.count()


def space() -> Memory:
    return Memory(f"late-{next(numbers)}")


async def force_release(client: AsyncClient, name: str) -> None:
    found = await client.inspect(name)
    assert found is not None
    assert found.token is not None
    assert await client.force_release(name, found.token)
