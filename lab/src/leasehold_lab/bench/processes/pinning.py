"""Pins client and server to cores.

The kernel's choice differs from trial to trial, and a wake-up across cores costs two or three times as much as one on
the same core. So without pinning, the figures of a single caller are random.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Sequence

from leasehold_lab.bench.measures import Measure
from leasehold_lab.bench.places import StoreKind
from leasehold_lab.servers.redis.server import RedisServer


class Pin(enum.StrEnum):
    """The modes of pinning."""

    ALONE = "alone"  # measures with a single caller: on one core with the server
    SAME = "same"  # all measures: client and server on one core
    OTHER = "other"  # all measures: on one core each
    NONE = "none"


class Cores:
    """The cores that this process may use, divided between client and server."""

    def __init__(self, pin: Pin, server: RedisServer | None) -> None:
        self._pin = pin
        self._server = server
        self._all: Sequence[int] = ()
        if server is not None and hasattr(os, "sched_setaffinity"):
            self._all = sorted(os.sched_getaffinity(0))

    def share(self, measure: Measure) -> tuple[int, ...]:
        """Pin the server for a measure; return the client's cores, empty for all."""
        pin = self.of(measure)
        if self._server is None or not self._all or measure.place is not StoreKind.REDIS:
            return ()
        os.sched_setaffinity(self._server.pid, self._all if pin is Pin.NONE else self._all[:1])
        return {Pin.SAME: (self._all[0],), Pin.OTHER: (self._all[-1],)}.get(pin, ())

    def of(self, measure: Measure) -> Pin:
        """Return the mode for a measure."""
        if self._pin is Pin.ALONE:
            return Pin.SAME if measure.concurrency == 1 else Pin.NONE
        return self._pin

    def __str__(self) -> str:
        if not self._all:
            return "left to the kernel"
        return {
            Pin.ALONE: "a single caller of Redis is on one core with the server; else left to the kernel",
            Pin.SAME: "client and server on the same core",
            Pin.OTHER: "client and server on a core each",
            Pin.NONE: "left to the kernel",
        }[self._pin]
