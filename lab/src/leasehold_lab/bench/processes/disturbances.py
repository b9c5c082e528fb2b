"""Lets one of several servers fail when a trial begins, and restores it at the end."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from leasehold_lab.bench.contestant import Disturbance
from leasehold_lab.bench.deployments import OpenStore
from leasehold_lab.bench.processes.server_counters import Observers


@contextmanager
def inject_disturbance(disturbance: Disturbance | None, store: OpenStore) -> Generator[Callable[[], None], None, None]:
    """Yield a function that makes the last server of a store fail; without a disturbance it does nothing.

    Meanwhile the counters of that server are not read, so its work is not counted.
    """
    if disturbance is None:
        yield lambda: None
        return
    assert isinstance(store.observer, Observers)
    server = store.servers[-1]
    with store.observer.without(len(store.servers) - 1):
        if disturbance is Disturbance.KILLED:
            try:
                yield server.kill
            finally:
                if not server.running:
                    server.start()
        else:
            try:
                yield server.pause
            finally:
                server.resume()
