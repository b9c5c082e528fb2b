"""Faults of clients: of their processes, and of their connections."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from leasehold_lab.history import Stall
from leasehold_lab.proxy.faults import Side
from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.verify.clients.process import Process


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of client fault.

    Attributes:
        key: its name on the command line.
        description: what it does, for people.
        needs_connections: whether it affects the connections, which then must lead through a proxy.
        ids: the rows of the fault catalogue in ``docs/correctness.md`` that it provokes.

    """

    key: str
    description: str
    needs_connections: bool
    ids: tuple[str, ...]


KINDS: Mapping[str, Kind] = {
    kind.key: kind
    for kind in (
        Kind("stall", "a client is stopped (SIGSTOP), up to two leases long", False, ("A1", "A2", "A3")),
        Kind("kill", "a client is killed (SIGKILL) and replaced", False, ("D4", "D5")),
        Kind("block", "a holder blocks its thread or event loop, up to one and a half leases long", False, ("A9",)),
        Kind("cut", "a client's connections are reset at each request", True, ("C17", "D2")),
        Kind("lose", "requests reach the store, and their replies are lost", True, ("B1", "B2", "B3", "D7")),
        Kind("delay", "all bytes of a client are delayed", True, ("B7", "A2")),
        Kind("hold", "a client's requests arrive late, all at once", True, ("B4",)),
        Kind("one-way", "requests reach the store, and replies arrive late, all at once", True, ("B6",)),
        Kind("blackhole", "a client's bytes are dropped in both directions", True, ("B5", "B9")),
        Kind("refuse", "a client's connections are reset and new ones refused", True, ("B5",)),
    )
}


SERVERS = "servers"
"""The victim of faults that affect all clients at once."""


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """A fault that was injected. ``who`` is the client, or `SERVERS`; times are of the history's clock."""

    kind: str
    who: str
    begin: float
    end: float


@contextmanager
def under(kind: str, process: Process, slow: float) -> Generator[None]:
    """Inject a fault into a client during the block.

    Not for ``kill``, which replaces the client, nor for ``block``, which clients do themselves.

    Args:
        kind: of `KINDS`.
        process: the client.
        slow: seconds by which ``delay`` delays each chunk of bytes, in each direction.

    """
    proxies = process.connections.proxies
    actions: Mapping[str, Callable[[FaultProxy], object]] = {
        "delay": lambda proxy: proxy.delay(slow),
        "lose": lambda proxy: proxy.drop_reply(0),
        "cut": lambda proxy: proxy.cut_at(0),
        "hold": lambda proxy: proxy.hold(Side.REQUESTS),
        "one-way": lambda proxy: proxy.hold(Side.REPLIES),
        "blackhole": lambda proxy: proxy.blackhole(),
        "refuse": lambda proxy: proxy.stop(),
    }
    if kind == "stall":
        process.stop()
    for proxy in proxies if kind in actions else ():
        actions[kind](proxy)
    if kind == "cut":
        for proxy in proxies:
            proxy.cut()
    try:
        yield
    finally:
        if kind == "stall":
            process.resume()
        for proxy in proxies:
            proxy.heal()
            proxy.start()


def affects_connections(fault: InjectedFault) -> bool:
    """Return whether it affected a client's connections."""
    return KINDS[fault.kind].needs_connections


def as_pause(fault: InjectedFault, recovers: float) -> Stall:
    """Return the time for which a fault may have paused a client, including its reconnection."""
    return Stall(fault.who, fault.begin, fault.end + (recovers if affects_connections(fault) else 0.0))
