"""What a client writes down while it works, and how a history is made of it.

A record is one line of JSON, written when it happens and in one piece, so that a client that is killed leaves all that
it knew. The harness adds what no client can write: who was killed, who was stopped, and who was cut off.
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
"""One line: ``t`` (seconds), ``who``, ``n`` (number of the operation), ``is`` (what happened), and facts."""

DEAD_WAITER = 2.0
"""Leases for which a dead client's request can keep a name: its place lasts one, and may become a hold until then."""


class Journal:
    """What one thread or task does, record by record. ``put`` takes each away; ``now`` reads the history's clock."""

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
        """Write down that an acquire is about to be sent; return its number."""
        self._count += 1
        facts = {"name": name, "mode": mode.value, "lease": lease, "permits": permits, "limit": limit}
        facts |= {} if renews else {"renews": renews}
        self._write(self._count, "asked", **facts, fair=fair, nested=nested)
        return self._count

    def queued(self, n: int) -> None:
        """Write down that the store said to wait."""
        self._write(n, "queued")

    def granted(self, n: int, token: int, since: float | None = None, deadline: float = FOREVER) -> None:
        """Write down that it is held; its lease counts from ``since``, before the request that was granted was sent.

        Without a renewal it ends at ``deadline``.
        """
        facts = {} if deadline == FOREVER else {"deadline": deadline}
        self._write(n, "granted", token=token, since=since, **facts)

    def refused(self, n: int) -> None:
        """Write down that somebody else has it."""
        self._write(n, "refused")

    def failed(self, n: int, error: BaseException) -> None:
        """Write down that nobody knows: no answer came, or one that came too late."""
        self._write(n, "failed", error=type(error).__name__)

    def checked(self, n: int, at: float, deadline: float, believed: float | None = None) -> None:
        """Write down that the hold, asked at ``at``, said that it is held, until ``deadline`` if nothing happens.

        ``believed`` are the seconds until then from the last that its client had sent, if that is known.
        """
        facts = {} if believed is None else {"believed": believed}
        self._write(n, "checked", at=at, deadline=deadline, **facts)

    def dropped(self, n: int) -> None:
        """Write down that nobody has the hold any more, and nobody has released it."""
        self._write(n, "dropped")

    def leaving(self, n: int) -> None:
        """Write down that a release is about to be sent."""
        self._write(n, "leaving")

    def freed(self, n: int, confirmed: bool) -> None:
        """Write down that the release has ended."""
        self._write(n, "freed", confirmed=confirmed)

    def told(self, n: int, deadline: float) -> None:
        """Write down that the holder was told of the loss; its last deadline was ``deadline``."""
        self._write(n, "told", deadline=deadline)

    def blocked(self, n: int, seconds: float, whom: str) -> None:
        """Write down that ``whom``, this thread or its whole client, was blocked until now."""
        self._write(n, "blocked", **{"for": seconds, "whom": whom})

    def held_up(self, seconds: float, whom: str | None = None) -> None:
        """Write down that it, or ``whom``, was ready to run, and the machine did not let it, until now."""
        self._write(0, "held up", **{"for": seconds, "whom": whom or self.who})

    def _write(self, n: int, what: str, **facts: object) -> None:
        self._put({"t": self._now(), "who": self.who, "n": n, "is": what, **facts})


def into_file(path: Path) -> Callable[[Record], None]:
    """Return what appends records to a file, each by one write: threads may share it, and nothing is kept back."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    encode = json.JSONEncoder(separators=(",", ":")).encode

    def put(record: Record) -> None:
        os.write(file, encode(record).encode() + b"\n")

    return put


def from_files(paths: Iterable[Path]) -> Iterator[Record]:
    """Yield the records of several files. A last line that was cut off by a kill is left out."""
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
    moments: Iterable[Stall] = (),
    lulls: Iterable[Stall] = (),
    removals: Iterable[float] = (),
) -> History:
    """Make a history of what was written down.

    Args:
        records: of all clients, in any order between clients.
        deaths: the last moment at which each client that was killed surely lived, and the first at which it surely was
            dead; its threads are called ``client.thread``.
        stalls: when clients were stopped.
        outages: when clients were cut off from the store.
        writes: what a guarded resource saw.
        moments: when clients got no turn of the machine, for a short time each.
        lulls: when what carries their bytes got none.
        removals: when the store lost all that it had granted.

    """
    lives: defaultdict[tuple[str, int], dict[str, Record]] = defaultdict(dict)
    for record in records:
        ttl = lives[record["who"], record["n"]]
        if record["is"] != "told" or "told" not in ttl:  # told first counts; of checks, the last
            ttl[record["is"]] = record
    holds, tries = list[Hold](), list[Try]()
    for (who, _), ttl in lives.items():
        if "refused" in ttl:
            tries.append(_try(who, ttl))
        else:
            holds.append(_hold(who, ttl, (deaths or {}).get(who.partition(".")[0], (FOREVER, FOREVER))))
    return History(
        tuple(holds),
        tuple(tries),
        tuple(writes),
        tuple(stalls),
        tuple(outages),
        tuple(moments),
        tuple(lulls),
        tuple(removals),
    )


def _try(who: str, ttl: Mapping[str, Record]) -> Try:
    asked, queued = ttl["asked"], ttl.get("queued")
    moment = None if queued is None else queued["t"]
    return Try(who, asked["name"], asked["t"], ttl["refused"]["t"], moment, asked["lease"] * DEAD_WAITER)


def _hold(who: str, ttl: Mapping[str, Record], death: tuple[float, float]) -> Hold:
    """Make a hold. One that ended by a kill ended when it may have: the store may have seen that before we did.

    Or its holder had come to nothing before, with its event loop blocked, and took with it that it was to lose its
    hold: so it ended at the last deadline that it wrote down. It may have been kept for a lease from when its holder
    was dead for sure, all the same.
    """
    asked = ttl["asked"]
    granted, told, checked, freed = (ttl.get(what) for what in ("granted", "told", "checked", "freed"))
    deadline = max((record["deadline"] for record in (told, checked) if record is not None), default=FOREVER)
    ends = [record["t"] for what in ("leaving", "told", "failed") if (record := ttl.get(what)) is not None]
    until = min([*ends, death[0], deadline if told is not None else FOREVER])
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
        ttl["queued"]["t"] if "queued" in ttl else None,
        None if told is None else told["t"],
        deadline,
        None if checked is None else checked["at"],
        asked["nested"],
        asked["fair"],
        None if granted is None else granted.get("since"),
        asked.get("renews", True),
        None if checked is None else checked.get("believed"),
        ttl["dropped"]["t"] if "dropped" in ttl else None,
    )
