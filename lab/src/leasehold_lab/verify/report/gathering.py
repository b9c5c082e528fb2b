"""From what clients wrote down, and what was done to them, to a history: who could not go on when, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from leasehold._url import StoreURL
from leasehold_lab.history import History, Stall, Write, merged
from leasehold_lab.history.journal import Record, assemble
from leasehold_lab.verify.clients.stall_detector import EVERY
from leasehold_lab.verify.faults.bounds import Suspension
from leasehold_lab.verify.faults.client_faults import KINDS, Done, as_pause, of_links

RECOVERS = 1.5
"""Seconds in which a client that was cut off asks again: the longest pause between two attempts, and its jitter."""

LOSES_PLACE = 1 / 3
"""Part of a lease: a waiter that stands still for longer may lose its place, which is renewed as often."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What is known of a run beside what its clients wrote down.

    Attributes:
        clients: the names of all of them.
        faults: that were made.
        suspensions: when the servers were away.
        deaths: when each client was killed, and seen to be dead.
        late: when the process that carries their bytes got no turn, as records of a pulse.

    """

    url: StoreURL
    lease: float
    clients: Sequence[str]
    faults: Sequence[Done]
    suspensions: Sequence[Suspension] = ()
    deaths: Mapping[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    late: Sequence[Record] = ()

    @property
    def shares_a_file(self) -> bool:
        """Whether a client that stands still in a transaction keeps all others from the store."""
        return self.url.scheme == "sqlite"


def gather(records: Sequence[Record], writes: Iterable[Write], these: Circumstances) -> History:
    """Put together what was written down."""
    short_pauses = _stalls(records, "held up")
    still = [as_pause(fault, 0.0) for fault in these.faults if fault.kind == "stall"]
    loses_place = these.lease * LOSES_PLACE
    still += [pause for pause in merged(short_pauses, 2 * EVERY) if pause.end - pause.begin > loses_place]
    outages = [as_pause(fault, RECOVERS) for fault in these.faults if fault.kind in KINDS and of_links(fault)]
    outages += [Stall(who, one.begin, one.served) for one in these.suspensions for who in these.clients]
    relay_pauses = _for_all(_stalls(these.late, "held up"), these)
    if these.shares_a_file:
        outages += _for_all(still, these)
        relay_pauses += _for_all(short_pauses, these)
    return assemble(
        (record for record in records if record["is"] not in ("blocked", "held up")),
        deaths=these.deaths,
        stalls=[*still, *_stalls(records, "blocked")],
        outages=outages,
        writes=writes,
        short_pauses=short_pauses,
        relay_pauses=relay_pauses,
    )


def _stalls(records: Iterable[Record], what: str) -> list[Stall]:
    return [Stall(one["whom"], one["t"] - one["for"], one["t"]) for one in records if one["is"] == what]


def _for_all(pauses: Iterable[Stall], these: Circumstances) -> list[Stall]:
    return [replace(pause, who=who) for pause in pauses for who in these.clients]
