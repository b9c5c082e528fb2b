"""The blocking transport: driving an exchange blocks until the socket is ready."""

from __future__ import annotations

import select
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from leasehold.stores.postgres.connection.base import PostgresTransport
from leasehold.stores.postgres.connection.errors import Broken
from leasehold.stores.postgres.connection.exchange import Steps

T = TypeVar("T")


class BlockingTransport(PostgresTransport):
    """See `leasehold.stores._sql.transport.SQLTransport`."""

    async def run(self, steps: Steps[T], until: float | None, *, goes_on: bool = False) -> T:
        kept = False
        try:
            need = next(steps)
            while True:
                poll = select.poll()  # not select(), which cannot wait for descriptors above 1,023
                poll.register(need.fd, need.events)
                if not poll.poll(None if until is None else max(until - self._runtime.now(), 0.0) * 1000):
                    raise TimeoutError("it answered too slowly")
                need = next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
        except TimeoutError:
            kept = goes_on
            raise
        except OSError as error:  # the kernel cannot wait for this descriptor
            raise Broken(str(error)) from None
        finally:
            if not kept:
                steps.close()  # it is not driven further: a connection that was opening or closing is closed now

    async def _addresses(self, hosts: Sequence[str]) -> Sequence[Sequence[str]]:
        return ()  # libpq resolves them, and blocks

    async def _shielded(self, work: Coroutine[Any, Any, T]) -> T:
        return await work  # nothing cancels a thread
