"""What the tests of the etcd store share."""

from __future__ import annotations

import threading

from leasehold._model import LeaseTerms, LockMode, Owner, Ticket
from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.servers import EtcdServer

NOISE = 1.0
TXN = b"POST /v3/kv/txn"


def calls_of(server: EtcdServer, before: dict[str, int]) -> dict[str, int]:
    """Return what was called since, without what a test itself asks to look at the server."""
    now = server.calls()
    names = ("Txn", "Range", "Put", "DeleteRange", "LeaseGrant", "LeaseRevoke", "LeaseKeepAlive", "Watch")
    return {name: now.get(name, 0) - before.get(name, 0) for name in names if now.get(name, 0) != before.get(name, 0)}


def url(*proxies: FaultProxy) -> str:
    return "etcd://" + ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)


def in_a_thread(work):
    """Begin a piece of work in a thread; return the thread, and the list into which its result is put."""
    got = []
    thread = threading.Thread(target=lambda: got.append(work()))
    thread.start()
    return thread, got


def ticket(number: int, *, lease: float = 10.0) -> Ticket:
    return Ticket(f"ticket-{number:015d}", LeaseTerms(LockMode(), Owner("h", 1, "c"), lease))
