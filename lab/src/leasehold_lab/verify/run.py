"""One run: start the clients, make faults, gather what they wrote down, and check it."""

from __future__ import annotations

import random
import secrets
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from leasehold._runtimes.base import Flavor
from leasehold._runtimes.clock import boottime
from leasehold._url import Secret, StoreURL, parse
from leasehold.client import Client
from leasehold.errors import StoreUnavailable
from leasehold_lab.history import History, Verdict, Violation
from leasehold_lab.history.journal import Journal, Record, from_files
from leasehold_lab.verify.clients.clients import Links, Process, VerifyError, default_port, end_all
from leasehold_lab.verify.clients.forkserver import Nursery
from leasehold_lab.verify.clients.resource import Resource
from leasehold_lab.verify.clients.stall_detector import Pulse
from leasehold_lab.verify.clients.worker import Orders
from leasehold_lab.verify.clients.workload import Load
from leasehold_lab.verify.deployments import Site
from leasehold_lab.verify.faults.bounds import Suspension, judge
from leasehold_lab.verify.faults.breaking import Breaker
from leasehold_lab.verify.faults.client_faults import KINDS, Done, under
from leasehold_lab.verify.faults.leases import outlives
from leasehold_lab.verify.report.gathering import RECOVERS, Circumstances, gather

BLOCKS = 0.01
"""The part of the holders that block their thread or loop."""

PASSED = 0.02
"""The part of the holds that a task or thread acquires for another one, or drops. These last long."""

CLOSES = 6.0
"""Leases after which a client is closed under use, on average."""

PREFIX = "leasehold-verify-"
"""How the namespace of a run begins."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user asked for.

    Attributes:
        servers: which kind of servers the run itself starts, and may break.
        workers: threads or tasks of each client.

    """

    url: StoreURL
    clients: int = 8
    seconds: float = 60.0
    faults: tuple[str, ...] = tuple(KINDS)
    seed: str = "1"
    lease: float = 1.0
    load: Load = field(default_factory=lambda: Load(blocks=BLOCKS, passed=PASSED, closes=CLOSES))
    servers: str | None = None
    workers: int = 3


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to.

    Attributes:
        outside: violations for which a fault of the servers is the reason: there the promise does not bind.
        left_out: kinds of faults that could not be made here, with the reason.
        broken: clients that ended with an error of their own, with their last words.
        held_up: seconds for which the machine did not let clients run, of all of them together.
        begin: when the clients began, by the history's clock; ``end``: when they were told to end.

    """

    settings: Settings
    namespace: str
    history: History
    verdict: Verdict
    outside: tuple[Violation, ...]
    faults: tuple[Done, ...]
    left_out: dict[str, str]
    broken: dict[str, str]
    held_up: float
    begin: float
    end: float

    @property
    def ok(self) -> bool:
        """Whether every promise was kept and every client went on."""
        return self.verdict.ok and not self.broken


class Witness(Protocol):
    """Someone who watches a run."""

    def moves(self, seconds: float, of: float, fault: str) -> None: ...


def possible(url: StoreURL) -> dict[str, str]:
    """Return the kinds of faults that cannot be made on a store at this URL, with the reason."""
    if url.scheme == "memory":
        raise VerifyError("memory: is seen by one process only, and a run has several; name a server, or sqlite:PATH")
    if default_port(url) is not None and url.hosts:
        return {}
    why = (
        "the store is reached without a network"
        if not (url.hosts or url.members)
        else f"the clients of a {url.scheme} URL find their servers by themselves, or check their certificates"
    )
    return {kind.key: why for kind in KINDS.values() if kind.needs_links}


def run(settings: Settings, witness: Witness, site: Site | None = None, nursery: Nursery | None = None) -> Outcome:
    """Run once, on servers of the user's own, or on those of a site, which then may be broken.

    Args:
        settings: what the user asked for.
        witness: who watches.
        site: the servers that may be broken.
        nursery: makes the clients, for several runs with the same scheme; without one the run has its own.

    Raises:
        VerifyError: it cannot run here; the message says why.
        ValueError, MissingDriver, StoreUnavailable: the store cannot be used.

    """
    left_out = {kind: why for kind, why in possible(settings.url).items() if kind in settings.faults}
    namespace = PREFIX + secrets.token_hex(6)
    with Client.from_url(settings.url.raw.reveal(), namespace=namespace) as client:
        client.holds()  # a store that is down says so before anything starts
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="leasehold-verify-"))
            resource = stack.enter_context(Resource(boottime))
            nursery = nursery or stack.enter_context(Nursery(settings.url.scheme))
            tardy = client._core._engine.store.capabilities.tardy + outlives(settings.url, settings.lease)
            settings = replace(settings, load=replace(settings.load, lease=settings.lease, tardy=tardy))
            crew = Crew(settings, namespace, Path(folder), resource.port, nursery, site)
            try:
                crew.start()
                begin = boottime()
                crew.work(witness, [kind for kind in settings.faults if kind not in left_out])
                end = boottime()
                broken = crew.end()
            finally:
                crew.kill()
            history = crew.history(resource)
        _clean_up(client)
    verdict, excused = judge(history, settings.lease, settings.url, crew.suspensions)
    faults, held_up = tuple(crew.faults), sum(moment.end - moment.begin for moment in history.short_pauses)
    return Outcome(settings, namespace, history, verdict, excused, faults, left_out, broken, held_up, begin, end)


class Crew:
    """The clients of a run, and what is done to them."""

    def __init__(
        self,
        settings: Settings,
        namespace: str,
        folder: Path,
        port: int,
        nursery: Nursery,
        site: Site | None = None,
    ) -> None:
        self._settings = settings
        self._namespace = namespace
        self._folder = folder
        self._port = port
        self._nursery = nursery
        self._random = random.Random(settings.seed)
        self._linked = any(kind in KINDS and KINDS[kind].needs_links for kind in settings.faults)
        self._count = 0
        self._working: list[Process] = []
        self._journals: list[Path] = []
        self._deaths: dict[str, tuple[float, float]] = {}
        self._breaker = Breaker(site, settings.lease, RECOVERS, namespace, self._random)
        self._late: list[Record] = []  # when this process got no turn
        self._pulse = Pulse(Journal("", boottime, self._late.append), boottime)
        self.faults: list[Done] = []

    @property
    def suspensions(self) -> Sequence[Suspension]:
        """When which promises did not bind."""
        return self._breaker.suspensions

    def start(self) -> None:
        """Start all clients, and wait until they work."""
        if self._linked:
            self._pulse.start()
        for _ in range(self._settings.clients):
            self._working.append(self._new())
        for process in self._working:
            process.wait_ready()

    def _new(self) -> Process:
        self._count += 1
        flavor = Flavor.ASYNC if self._count % 2 else Flavor.SYNC
        load = self._settings.load
        if "block" not in self._settings.faults:
            load = replace(load, blocks=0.0)
        journal = self._folder / f"client-{self._count}.jsonl"
        self._journals.append(journal)
        orders = Orders(
            who=str(self._count),
            url="",
            namespace=self._namespace,
            flavor=flavor,
            workers=self._settings.workers,
            seed=f"{self._settings.seed}.{self._count}",
            journal=str(journal),
            port=self._port,
            load=load,
            response_timeout=max(1.0, self._settings.lease),
        )
        return Process(orders, Links(self._settings.url, through=self._linked), self._folder, self._nursery)

    def work(self, witness: Witness, kinds: Sequence[str]) -> None:
        """Let them work, and make one fault after the other until the time is up."""
        begin = time.monotonic()
        until = begin + self._settings.seconds
        chosen = [kind for kind in kinds if kind != "block"]
        queue = list[str]()

        def sleep(seconds: float) -> None:
            end = time.monotonic() + seconds
            while (left := end - time.monotonic()) > 0:
                time.sleep(min(left, 0.2))
                witness.moves(time.monotonic() - begin, self._settings.seconds, doing)

        doing = ""
        while (left := until - time.monotonic()) > 0:
            doing = ""
            sleep(min(left, self._random.uniform(0.1, 0.5) * self._settings.lease))
            if chosen and until - time.monotonic() > self._settings.lease:
                if not queue:  # every kind comes once before any comes again
                    queue = self._random.sample(chosen, len(chosen))
                doing = queue.pop()
                self._make(doing, sleep)

    def _make(self, kind: str, sleep: Callable[[float], None]) -> None:
        for process in self._working:
            if not process.alive:
                raise VerifyError(f"a client ended by itself: {process.last_words()}")
        most = len(self._working) // (1 if kind == "delay" else 2)  # what is slow everywhere still gets on
        places = self._random.sample(range(len(self._working)), self._random.randint(1, most))
        length = self._random.choice((0.1, 0.3, 0.8, 1.3, 2.0)) * self._settings.lease
        slow = self._random.choice((0.03, 0.15, 0.3)) * self._settings.lease
        if kind == "kill":
            self._replace(places[0])
            return
        if kind in self._breaker.kinds:
            self.faults.append(self._breaker.make(kind, sleep))
            return
        victims, begin = [self._working[place] for place in places], boottime()
        with ExitStack() as stack:
            for victim in victims:
                stack.enter_context(under(kind, victim, slow))
            sleep(length)
        self.faults += [Done(kind, victim.who, begin, boottime()) for victim in victims]

    def _replace(self, place: int) -> None:
        victim, begin = self._working[place], boottime()
        victim.kill()
        self._deaths[victim.who] = begin, boottime()
        self.faults.append(Done("kill", victim.who, *self._deaths[victim.who]))
        self._working[place] = self._new()
        self._working[place].wait_ready()

    def end(self) -> dict[str, str]:
        """End all clients; return the last words of those that did not end well."""
        bad = end_all(self._working)
        return {process.who: process.last_words() for process in bad}

    def kill(self) -> None:
        """End whatever still runs."""
        self._pulse.stop()
        for process in self._working:
            if process.alive:
                process.kill()

    def history(self, resource: Resource) -> History:
        """Put together what was written down."""
        records = list(from_files(path for path in self._journals if path.exists()))
        everyone = [str(number) for number in range(1, self._count + 1)]
        settings, suspensions = self._settings, self.suspensions
        these = Circumstances(
            settings.url, settings.lease, everyone, self.faults, suspensions, self._deaths, self._late
        )
        return gather(records, resource.writes, these)


def _clean_up(client: Client) -> None:
    """Take from the run's own namespace what dead clients left: it ends with the run, not with their leases."""
    try:
        for info in client.holds():
            for holder in info.holders:
                if holder.token is not None:
                    client.force_release(info.name, holder.token)
    except StoreUnavailable:
        return  # what is left ends with its leases


def read_url(text: str | None) -> StoreURL:
    """Read the URL of the store; None is what `Client.from_url` takes it for."""
    from leasehold.stores.registry import hide

    return parse(hide(Secret(text) if text is not None else None))
