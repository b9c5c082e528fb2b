"""The faults that can be made from the client's side: done to some clients, for a while, and written down."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from leasehold_lab.history import Stall
from leasehold_lab.proxy.faults import Side
from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.verify.clients.clients import Process


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault.

    Attributes:
        key: its name on the command line.
        says: what it does, for people.
        needs_links: whether it is done to the connections, which then must lead through a proxy.
        ids: the rows of the fault catalogue in ``docs/correctness.md`` that it provokes.

    """

    key: str
    says: str
    needs_links: bool
    ids: tuple[str, ...]


KINDS: Mapping[str, Kind] = {
    kind.key: kind
    for kind in (
        Kind("stall", "a client is stopped (SIGSTOP), up to two leases long", False, ("A1", "A2", "A3")),
        Kind("kill", "a client is killed (SIGKILL); another takes its place", False, ("D4", "D5")),
        Kind("block", "a holder blocks its thread or event loop, up to one and a half leases long", False, ("A9",)),
        Kind("cut", "a client's connections are reset whenever it asks something", True, ("C17", "D2")),
        Kind("lose", "requests reach the store, and their replies are lost", True, ("B1", "B2", "B3", "D7")),
        Kind("delay", "all bytes of a client are delayed", True, ("B7", "A2")),
        Kind("hold", "a client's requests arrive late, all at once", True, ("B4",)),
        Kind("one-way", "requests reach the store, and nothing comes back until later", True, ("B6",)),
        Kind("blackhole", "a client's bytes vanish in both directions", True, ("B5", "B9")),
        Kind("refuse", "a client's connections are reset and new ones refused", True, ("B5",)),
    )
}


SERVERS = "servers"
"""To whom faults are done that strike all clients at once."""


@dataclass(frozen=True, slots=True)
class Done:
    """A fault that was made. ``who`` is the client, or `SERVERS`; times are the history's."""

    kind: str
    who: str
    begin: float
    end: float


@contextmanager
def under(kind: str, process: Process, slow: float) -> Generator[None]:
    """Keep a client under a fault for the length of the block.

    Not for ``kill``, after which comes a new client, nor for ``block``, which clients do themselves.

    Args:
        kind: of `KINDS`.
        process: the client.
        slow: seconds by which ``delay`` delays each chunk of bytes, in each direction.

    """
    proxies = process.links.proxies
    acts: Mapping[str, Callable[[FaultProxy], object]] = {
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
    for proxy in proxies if kind in acts else ():
        acts[kind](proxy)
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


def of_links(fault: Done) -> bool:
    """Say whether it was done to a client's connections."""
    return KINDS[fault.kind].needs_links


def as_pause(fault: Done, recovers: float) -> Stall:
    """Return the time for which a fault may have kept a client from going on; with its way back to the store."""
    return Stall(fault.who, fault.begin, fault.end + (recovers if of_links(fault) else 0.0))
