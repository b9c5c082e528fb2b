"""Records what a client does, and builds a history from the records.

A record is one line of JSON. It is written when the event happens, by one write, so a killed client leaves all that it
knew. The harness adds what no client can write: which clients were killed, stopped or cut off.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from leasehold_lab.history.operations import FOREVER, History, Hold, Mode, Stall, Try, Write

Record = dict[str, Any]
"""One line: ``t`` (seconds), ``who``, ``n`` (number of the operation), ``is`` (the event), and further fields."""

DEAD_WAITER = 2.0
"""Leases for which a dead client's request can keep a name: its queue entry lasts one lease, and a grant another."""


class Journal:
    """Records what one thread or task does.

    Args:
        who: the client and the thread or task.
        now: reads the clock of the history.
        put: stores one record.

    """

    def __init__(self, who: str, now: Callable[[], float], put: Callable[[Record], None]) -> None:
        self.who = who
        self._now = now
        self._put = put
        self._count = 0

    def asked(
        self,
        name: str,
        mode: Mode = Mode.EXCLUSIVE,
        *,
        lease: float,
        permits: int = 1,
        limit: int = 1,
        fair: bool = False,
        nested: bool = False,
        renews: bool = True,
    ) -> int:
        """Record that an acquire is about to be sent; return its number."""
        self._count += 1
        fields = {"name": name, "mode": mode.value, "lease": lease, "permits": permits, "limit": limit}
        fields |= {} if renews else {"renews": renews}
        self._write(self._count, "asked", **fields, fair=fair, nested=nested)
        return self._count

    def queued(self, n: int) -> None:
        """Record that the store queued the acquire."""
        self._write(n, "queued")

    def granted(self, n: int, token: int, since: float | None = None, deadline: float = FOREVER) -> None:
        """Record a grant.

        Its lease counts from ``since``, which lies before the granted request was sent. Without a renewal it ends at
        ``deadline``.
        """
        fields = {} if deadline == FOREVER else {"deadline": deadline}
        self._write(n, "granted", token=token, since=since, **fields)

    def refused(self, n: int) -> None:
        """Record that the acquire was refused, since the name is held."""
        self._write(n, "refused")

    def failed(self, n: int, error: BaseException) -> None:
        """Record that the outcome is unknown: no answer came, or it came too late."""
        self._write(n, "failed", error=type(error).__name__)

    def checked(self, n: int, at: float, deadline: float, believed: float | None = None) -> None:
        """Record that a check at time ``at`` reported the hold as valid, until ``deadline`` without a renewal.

        ``believed`` is the number of seconds from the last request of its client to that deadline, if it is known.
        """
        fields = {} if believed is None else {"believed": believed}
        self._write(n, "checked", at=at, deadline=deadline, **fields)

    def dropped(self, n: int) -> None:
        """Record that nothing refers to the hold any more, although it was not released."""
        self._write(n, "dropped")

    def leaving(self, n: int) -> None:
        """Record that a release is about to be sent."""
        self._write(n, "leaving")

    def freed(self, n: int, confirmed: bool) -> None:
        """Record the end of the release."""
        self._write(n, "freed", confirmed=confirmed)

    def notified(self, n: int, deadline: float) -> None:
        """Record that the holder was notified of the loss; its last deadline was ``deadline``."""
        self._write(n, "notified", deadline=deadline)

    def blocked(self, n: int, seconds: float, whom: str) -> None:
        """Record that ``whom``, this thread or its whole client, was blocked until now."""
        self._write(n, "blocked", **{"for": seconds, "whom": whom})

    def held_up(self, seconds: float, whom: str | None = None) -> None:
        """Record that this worker, or ``whom``, was ready to run and got no processor until now."""
        self._write(0, "held up", **{"for": seconds, "whom": whom or self.who})

    def _write(self, n: int, event: str, **fields: object) -> None:
        self._put({"t": self._now(), "who": self.who, "n": n, "is": event, **fields})


def into_file(path: Path) -> Callable[[Record], None]:
    """Return a function that appends records to a file, each by one unbuffered write; threads may share it."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    encode = json.JSONEncoder(separators=(",", ":")).encode

    def put(record: Record) -> None:
        os.write(file, encode(record).encode() + b"\n")

    return put


def from_files(paths: Iterable[Path]) -> Iterator[Record]:
    """Yield the records of several files. Skips a last line that a kill cut off."""
    for path in paths:
        for line in path.read_bytes().split(b"\n")[:-1]:
            yield json.loads(line)


def assemble(
    records: Iterable[Record],
    *,
    deaths: Mapping[str, tuple[float, float]] | None = None,
    stalls: Iterable[Stall] = (),
    outages: Iterable[Stall] = (),
    writes: Iterable[Write] = (),
    short_pauses: Iterable[Stall] = (),
    relay_pauses: Iterable[Stall] = (),
    removals: Iterable[float] = (),
) -> History:
    """Build a history from records.

    Args:
        records: of all clients, in any order between clients.
        deaths: for each killed client, the last moment at which it was surely alive, and the first at which it was
            surely dead; its threads are called ``client.thread``.
        stalls: when clients were stopped.
        outages: when clients were cut off from the store.
        writes: what a guarded resource saw.
        short_pauses: when clients got no processor, for a short time each.
        relay_pauses: when the process that carries their bytes got no processor.
        removals: when the store lost all that it had granted.

    """
    operations: defaultdict[tuple[str, int], dict[str, Record]] = defaultdict(dict)
    for record in records:
        events = operations[record["who"], record["n"]]
        if record["is"] != "notified" or "notified" not in events:  # the first notice counts; of checks, the last
            events[record["is"]] = record
    holds, tries = list[Hold](), list[Try]()
    for (who, _), events in operations.items():
        if "refused" in events:
            tries.append(_try(who, events))
        else:
            holds.append(_hold(who, events, (deaths or {}).get(who.partition(".")[0], (FOREVER, FOREVER))))
    return History(
        tuple(holds),
        tuple(tries),
        tuple(writes),
        tuple(stalls),
        tuple(outages),
        tuple(short_pauses),
        tuple(relay_pauses),
        tuple(removals),
    )


def _try(who: str, events: Mapping[str, Record]) -> Try:
    asked, queued = events["asked"], events.get("queued")
    moment = None if queued is None else queued["t"]
    return Try(who, asked["name"], asked["t"], events["refused"]["t"], moment, asked["lease"] * DEAD_WAITER)


def _hold(who: str, events: Mapping[str, Record], death: tuple[float, float]) -> Hold:
    """Build a hold.

    A hold that a kill ended is taken to end at the earliest possible moment, since the store may have seen the death
    before we did. Its holder may have blocked its event loop before it was killed, and so never reported a loss. So
    such a hold ends at the last recorded deadline at the latest. The store may still have kept it for a lease, counted
    from the moment at which its holder was surely dead.
    """
    asked = events["asked"]
    granted, notified, checked, freed = (events.get(what) for what in ("granted", "notified", "checked", "freed"))
    deadline = max((record["deadline"] for record in (notified, checked) if record is not None), default=FOREVER)
    ends = [record["t"] for what in ("leaving", "notified", "failed") if (record := events.get(what)) is not None]
    until = min([*ends, death[0], deadline if notified is not None else FOREVER])
    dying = 0.0
    if until == death[0] < FOREVER:
        known = [record["deadline"] for record in (granted, checked) if record is not None and "deadline" in record]
        until = min(until, max(known, default=FOREVER))
        dying = death[1] - until
    return Hold(
        who,
        asked["name"],
        asked["t"],
        None if granted is None else granted["t"],
        until,
        freed["t"] if freed is not None and freed["confirmed"] else None,
        None if granted is None else granted["token"],
        Mode(asked["mode"]),
        asked["permits"],
        asked["limit"],
        asked["lease"] * (1.0 if granted is not None else DEAD_WAITER) + dying,
        events["queued"]["t"] if "queued" in events else None,
        None if notified is None else notified["t"],
        deadline,
        None if checked is None else checked["at"],
        asked["nested"],
        asked["fair"],
        None if granted is None else granted.get("since"),
        asked.get("renews", True),
        None if checked is None else checked.get("believed"),
        events["dropped"]["t"] if "dropped" in events else None,
    )
