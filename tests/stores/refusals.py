"""What a client of each colour is told that cannot have a name, and how a socket is kept from this process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from colours import COLOURS

from leasehold import StoreUnavailable
from leasehold.testing.worlds import World

NOBODY = 65534
"""A user id without rights."""


def refusals(url: str, within: float = 5.0) -> Sequence[StoreUnavailable]:
    """Claim the name "x" by a client of each colour, the blocking one first; return what each is told."""

    async def body(world: World) -> StoreUnavailable:
        with pytest.raises(StoreUnavailable) as caught:
            await world.client(url, response_timeout=within).lock("x").acquire(timeout=within)
        return caught.value

    return [world.run(body) for world in COLOURS]


@contextlib.contextmanager
def closed(folder: Path) -> Iterator[Path]:
    """Make a folder in this one that nobody may look into, and be nobody if we are root, who may."""
    within = folder / "closed"
    within.mkdir(mode=0)
    me = os.geteuid()
    if me == 0:
        os.seteuid(NOBODY)
    try:
        yield within
    finally:
        os.seteuid(me)
