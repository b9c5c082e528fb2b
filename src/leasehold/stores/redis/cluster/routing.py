"""Pipelining on a transport to several servers: each command is posted to its server.

Only what is known without waiting counts. If it is in doubt which server has a command's keys, or is the primary, the
command is not posted; the transport sends it, and finds out. A server that lost a reply is in doubt from then on. The
connections to a server that the transport has left are closed; their pending replies are reported as lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable, Unsupported
from leasehold.stores.redis.connection.base import Transport
from leasehold.stores.redis.connection.pipelining import OnReply, PipelinedConnection, Pipelining, pipelining_for


class RoutedPipelining:
    """See `leasehold.stores.redis.connection.pipelining.Pipelining`.

    Args:
        runtime: of the client.
        route: returns the transport to the server of a packed command; None if that is in doubt.
        served: returns the transports to all servers in use.
        doubt: called with a transport on which a reply was lost. None of the three blocks.

    """

    def __init__(
        self,
        runtime: Runtime,
        route: Callable[[bytes], Transport | None],
        served: Callable[[], Collection[Transport]],
        doubt: Callable[[Transport], None],
    ) -> None:
        self._runtime = runtime
        self._route = route
        self._served = served
        self._doubt = doubt
        self._forget()

    def _forget(self) -> None:
        self._mutex = self._runtime.mutex()
        self._each: dict[Transport, Pipelining] = {}
        self._short: set[Transport] = set()  # transports that had too few connections
        self._closed = False

    def post(self, command: bytes, until: float, answered: OnReply, taken: list[PipelinedConnection]) -> bool:
        transport = self._route(command)
        one = None if transport is None else self._each.get(transport) or self._begin(transport)
        if transport is None or one is None:
            return False

        def answered_or_lost(reply: Any, failure: StoreUnavailable | None) -> None:
            if failure is not None:
                self._doubt(transport)
            answered(reply, failure)

        if one.post(command, until, answered_or_lost, taken):
            return True
        self._short.add(transport)
        return False

    def add(self, within: float) -> None:
        failed: StoreUnavailable | Unsupported | None = None
        while self._short:
            transport = self._short.pop()
            one = self._each.get(transport)
            try:
                if one is not None:
                    one.add(within)
            except (StoreUnavailable, Unsupported) as error:
                self._doubt(transport)
                failed = error
        if failed is not None:
            raise failed

    def read(self, now: float) -> bool:
        return sum(one.read(now) for one in self._all()) > 0  # of all: any() would end at the first

    def hang_up(self) -> None:
        for one in self._all():
            one.hang_up()

    def close(self) -> None:
        with self._mutex:
            self._closed = True
        for one in self._all():
            one.close()

    def after_fork(self) -> None:
        for one in self._each.values():
            one.after_fork()
        self._forget()

    def _all(self) -> list[Pipelining]:
        with self._mutex:
            return list(self._each.values())

    def _begin(self, transport: Transport) -> Pipelining | None:
        """Make the pipelining of one more server, and close those of servers that are not in use any more."""
        with self._mutex:
            if self._closed:
                return None
            made = self._each.get(transport) or pipelining_for(self._runtime, transport)
            served = self._served()
            if made is None or transport not in served:
                return None
            left = [self._each.pop(other) for other in [*self._each] if other not in served]
            self._each[transport] = made
        for one in left:
            one.close()
        return made
