"""One server of several fails just as a trial begins, and is well again at its end."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from leasehold_lab.bench.contestants import Harm
from leasehold_lab.bench.deployments import Site
from leasehold_lab.bench.processes.server_counters import Observers


@contextmanager
def harmed(harm: Harm | None, site: Site) -> Generator[Callable[[], None], None, None]:
    """Yield what makes the last server of a site fail; without a harm it does nothing.

    In the meantime nobody looks at that server, so what it did is counted for none.
    """
    if harm is None:
        yield lambda: None
        return
    assert isinstance(site.observer, Observers)
    server = site.servers[-1]
    with site.observer.without(len(site.servers) - 1):
        if harm is Harm.KILLED:
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
