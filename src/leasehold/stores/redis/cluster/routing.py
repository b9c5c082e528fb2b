"""Pipelining where one transport stands for several servers: each command goes to the server that it is for.

It decides with what it knows without waiting. If it is not sure who the primary is, it does not send the command. The
caller then uses the transport, which finds out. A server that lost a reply is doubted from then on. When the transport
leaves a server, this leaves it, too, and reports its open replies as lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable, Unsupported
from leasehold.stores.redis.connection.base import Transport
from leasehold.stores.redis.connection.pipelining import Answered, PipelinedConnection, Pipelining, posting


class RoutedPipelining:
    """See `leasehold.stores.redis.connection.pipelining.Pipelining`.

    Args:
        runtime: of the client.
        route: returns the transport of the server that a packed command is for; None if it is not known for sure.
        served: returns the transports of all servers that commands may be for now.
        doubt: called with a transport that lost a request. None of the three may wait.

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
        self._reset()

    def _reset(self) -> None:
        self._mutex = self._runtime.mutex()
        self._each: dict[Transport, Pipelining] = {}
        self._short: set[Transport] = set()  # the transports with too few connections
        self._closed = False

    def post(self, command: bytes, until: float, answered: Answered, taken: list[PipelinedConnection]) -> bool:
        transport = self._route(command)
        one = None if transport is None else self._each.get(transport) or self._begin(transport)
        if transport is None or one is None:
            return False

        def on_reply(reply: Any, failure: StoreUnavailable | None) -> None:
            if failure is not None:
                self._doubt(transport)
            answered(reply, failure)

        if one.post(command, until, on_reply, taken):
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
        return sum(one.read(now) for one in self._all()) > 0  # a sum, since any() would stop at the first

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
        self._reset()

    def _all(self) -> list[Pipelining]:
        with self._mutex:
            return list(self._each.values())

    def _begin(self, transport: Transport) -> Pipelining | None:
        """Start pipelining for one more server, and stop it for servers that are not served any more."""
        with self._mutex:
            if self._closed:
                return None
            made = self._each.get(transport) or posting(self._runtime, transport)
            served = self._served()
            if made is None or transport not in served:
                return None
            left = [self._each.pop(other) for other in [*self._each] if other not in served]
            self._each[transport] = made
        for one in left:
            one.close()
        return made
