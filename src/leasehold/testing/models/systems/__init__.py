"""The systems of servers that there are models of, by name."""

from __future__ import annotations

from collections.abc import Callable

from leasehold.testing.models.system import Spoilt, System
from leasehold.testing.models.systems.redis import RedisSystem
from leasehold.testing.worlds import SimulatedWorld

SYSTEMS: dict[str, type[System]] = {each.name: each for each in (RedisSystem,)}
