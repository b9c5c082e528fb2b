"""The addresses of a server, and which of them took too long, for one client."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, TypeVar

E = TypeVar("E", bound=Hashable)

MOST = 100
"""Endpoints that are remembered: a name may have ever new addresses. Then all are forgotten."""

NEARLY = 0.99
"""Part of its share after which an endpoint took all of it: the clocks of a runtime differ a little."""


class Silent(dict[E, float]):
    """When each endpoint took its whole share of a call; 0 if it answered then. Used by many threads or tasks at once.

    * Each endpoint gets an equal share of the time that is left.
    * One that took all of it is tried last from then on, until it is quick.
    * If only such ones are left, a slow one may be the server. So the one that waited longest gets all the time, before
      all others one that answered in the end.
    """

    def last(self, endpoints: Iterable[E]) -> list[E]:
        """Return the endpoints in the order in which they are tried."""
        return sorted(endpoints, key=lambda one: (one in self, self.get(one, 0.0)))

    def limit(self, waiting: Sequence[E], now: float, until: float) -> float:
        """Return the time until which the first of these may take."""
        return until if all(one in self for one in waiting) else now + (until - now) / len(waiting)

    def note(self, endpoint: E, share: float, began: float, now: float, *, answered: bool = False) -> None:
        """Remember an endpoint that took its whole share, however that ended; forget any other."""
        if now - began < share * NEARLY:
            self.pop(endpoint, None)
            return
        if len(self) >= MOST:
            self.clear()
        self[endpoint] = 0.0 if answered else now


def addresses_in(found: Iterable[tuple[Any, ...]]) -> list[str]:
    """Return the addresses in what a resolver found, in its order; a local one has the number of its interface."""
    return list(dict.fromkeys("%".join(map(str, (info[4][0], *filter(None, info[4][3:])))) for info in found))
