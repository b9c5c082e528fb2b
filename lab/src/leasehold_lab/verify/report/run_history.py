"""Builds the history of a run from the clients' records and from the injected faults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from leasehold._url import StoreURL
from leasehold_lab.history import History, Stall, Write, merged
from leasehold_lab.history.journal import Record, assemble
from leasehold_lab.verify.clients.stall_detector import EVERY
from leasehold_lab.verify.faults.bounds import Suspension
from leasehold_lab.verify.faults.client_faults import KINDS, InjectedFault, affects_connections, as_pause

RECOVERS = 1.5
"""Seconds within which a client that was cut off retries: the longest pause between two attempts, and its jitter."""

LOSES_ENTRY = 1 / 3
"""Leases: a waiter that is paused for longer may lose its queue entry, which is renewed at this interval."""


@dataclass(frozen=True, slots=True)
class RunConditions:
    """What is known of a run besides the records of its clients.

    Attributes:
        clients: the names of all clients.
        faults: that were injected.
        suspensions: when the servers were away.
        deaths: for each killed client, when it was killed, and when it was seen to be dead.
        late: when the process that relays their bytes got no processor, as records of a stall detector.

    """

    url: StoreURL
    lease: float
    clients: Sequence[str]
    faults: Sequence[InjectedFault]
    suspensions: Sequence[Suspension] = ()
    deaths: Mapping[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    late: Sequence[Record] = ()

    @property
    def shares_a_file(self) -> bool:
        """Whether a client that is paused in a transaction keeps all others from the store."""
        return self.url.scheme == "sqlite"


def build_history(records: Sequence[Record], writes: Iterable[Write], run: RunConditions) -> History:
    """Build the history of a run."""
    short_pauses = _stalls(records, "held up")
    long_pauses = [as_pause(fault, 0.0) for fault in run.faults if fault.kind == "stall"]
    loses_entry = run.lease * LOSES_ENTRY
    long_pauses += [pause for pause in merged(short_pauses, 2 * EVERY) if pause.end - pause.begin > loses_entry]
    outages = [as_pause(fault, RECOVERS) for fault in run.faults if fault.kind in KINDS and affects_connections(fault)]
    outages += [Stall(who, one.begin, one.served) for one in run.suspensions for who in run.clients]
    relay_pauses = _for_all(_stalls(run.late, "held up"), run)
    if run.shares_a_file:
        outages += _for_all(long_pauses, run)
        relay_pauses += _for_all(short_pauses, run)
    return assemble(
        (record for record in records if record["is"] not in ("blocked", "held up")),
        deaths=run.deaths,
        stalls=[*long_pauses, *_stalls(records, "blocked")],
        outages=outages,
        writes=writes,
        short_pauses=short_pauses,
        relay_pauses=relay_pauses,
    )


def _stalls(records: Iterable[Record], event: str) -> list[Stall]:
    return [Stall(one["whom"], one["t"] - one["for"], one["t"]) for one in records if one["is"] == event]


def _for_all(pauses: Iterable[Stall], run: RunConditions) -> list[Stall]:
    return [replace(pause, who=who) for pause in pauses for who in run.clients]
