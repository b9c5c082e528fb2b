"""One run: starts the clients, injects faults, builds the history, and checks it."""

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
from leasehold_lab.verify.clients.forkserver import ForkServer
from leasehold_lab.verify.clients.process import Connections, Process, VerifyError, default_port, end_all
from leasehold_lab.verify.clients.resource import Resource
from leasehold_lab.verify.clients.stall_detector import StallDetector
from leasehold_lab.verify.clients.worker import Orders
from leasehold_lab.verify.clients.workload import Load
from leasehold_lab.verify.deployments import Deployment
from leasehold_lab.verify.faults.bounds import Suspension, judge
from leasehold_lab.verify.faults.client_faults import KINDS, InjectedFault, under
from leasehold_lab.verify.faults.injector import FaultInjector
from leasehold_lab.verify.faults.leases import outlives
from leasehold_lab.verify.report.run_history import RECOVERS, RunConditions, build_history

BLOCKS = 0.01
"""The fraction of holders that block their thread or loop."""

PASSED = 0.02
"""The fraction of holds that one task or thread acquires and another one uses, or that it drops. These last long."""

CLOSES = 6.0
"""Leases after which a client is closed while in use, on average."""

PREFIX = "leasehold-verify-"
"""The prefix of the namespace of a run."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user asked for.

    Attributes:
        servers: the kind of servers that the run itself starts and may break.
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
    """The result of a run.

    Attributes:
        excused: violations that a server fault excuses, since it suspends the promise.
        left_out: kinds of faults that could not be injected here, with the reason.
        broken: clients that failed, with the last line of their standard error.
        held_up: seconds in which clients got no processor, summed over all clients.
        begin: when the clients began, by the history's clock.
        end: when the clients were asked to end.

    """

    settings: Settings
    namespace: str
    history: History
    verdict: Verdict
    excused: tuple[Violation, ...]
    faults: tuple[InjectedFault, ...]
    left_out: dict[str, str]
    broken: dict[str, str]
    held_up: float
    begin: float
    end: float

    @property
    def ok(self) -> bool:
        """Whether every promise was kept and no client failed."""
        return self.verdict.ok and not self.broken


class Progress(Protocol):
    """Displays the progress of a run."""

    def update(self, seconds: float, of: float, fault: str) -> None: ...


def impossible_faults(url: StoreURL) -> dict[str, str]:
    """Return the kinds of faults that cannot be injected at this URL, with the reason."""
    if url.scheme == "memory":
        raise VerifyError("memory: is visible to one process only, and a run has several; use a server or sqlite:PATH")
    if default_port(url) is not None and url.hosts:
        return {}
    why = (
        "the store is reached without a network"
        if not (url.hosts or url.members)
        else f"the clients of a {url.scheme} URL discover their servers by themselves, or check certificates"
    )
    return {kind.key: why for kind in KINDS.values() if kind.needs_connections}


def run(
    settings: Settings, progress: Progress, deployment: Deployment | None = None, forkserver: ForkServer | None = None
) -> Outcome:
    """Run once, on the user's own servers, or on a deployment that may be broken.

    Args:
        settings: what the user asked for.
        progress: displays the progress.
        deployment: the servers that may be broken.
        forkserver: forks the clients, for several runs with the same scheme; without one the run starts its own.

    Raises:
        VerifyError: the run is not possible here; the message has the reason.
        ValueError, MissingDriver, StoreUnavailable: the store cannot be used.

    """
    left_out = {kind: why for kind, why in impossible_faults(settings.url).items() if kind in settings.faults}
    namespace = PREFIX + secrets.token_hex(6)
    with Client.from_url(settings.url.raw.reveal(), namespace=namespace) as client:
        client.holds()  # raises before anything starts if the store is down
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="leasehold-verify-"))
            resource = stack.enter_context(Resource(boottime))
            forkserver = forkserver or stack.enter_context(ForkServer(settings.url.scheme))
            expiry_delay = client._core._engine.store.capabilities.expiry_delay + outlives(settings.url, settings.lease)
            settings = replace(settings, load=replace(settings.load, lease=settings.lease, expiry_delay=expiry_delay))
            group = ClientGroup(settings, namespace, Path(folder), resource.port, forkserver, deployment)
            try:
                group.start()
                begin = boottime()
                group.work(progress, [kind for kind in settings.faults if kind not in left_out])
                end = boottime()
                broken = group.end()
            finally:
                group.kill()
            history = group.history(resource)
        _clean_up(client)
    verdict, excused = judge(history, settings.lease, settings.url, group.suspensions)
    faults, held_up = tuple(group.faults), sum(moment.end - moment.begin for moment in history.short_pauses)
    return Outcome(settings, namespace, history, verdict, excused, faults, left_out, broken, held_up, begin, end)


class ClientGroup:
    """The clients of a run, and the faults that are injected into them."""

    def __init__(
        self,
        settings: Settings,
        namespace: str,
        folder: Path,
        port: int,
        forkserver: ForkServer,
        deployment: Deployment | None = None,
    ) -> None:
        self._settings = settings
        self._namespace = namespace
        self._folder = folder
        self._port = port
        self._forkserver = forkserver
        self._random = random.Random(settings.seed)
        self._through_proxies = any(kind in KINDS and KINDS[kind].needs_connections for kind in settings.faults)
        self._count = 0
        self._processes: list[Process] = []
        self._journals: list[Path] = []
        self._deaths: dict[str, tuple[float, float]] = {}
        self._injector = FaultInjector(deployment, settings.lease, RECOVERS, namespace, self._random)
        self._late: list[Record] = []  # when this process got no processor
        self._stall_detector = StallDetector(Journal("", boottime, self._late.append), boottime)
        self.faults: list[InjectedFault] = []

    @property
    def suspensions(self) -> Sequence[Suspension]:
        """When which promises were suspended."""
        return self._injector.suspensions

    def start(self) -> None:
        """Start all clients, and wait until they are ready."""
        if self._through_proxies:
            self._stall_detector.start()
        for _ in range(self._settings.clients):
            self._processes.append(self._new())
        for process in self._processes:
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
        return Process(
            orders, Connections(self._settings.url, through=self._through_proxies), self._folder, self._forkserver
        )

    def work(self, progress: Progress, kinds: Sequence[str]) -> None:
        """Inject one fault after the other until the time is up."""
        begin = time.monotonic()
        until = begin + self._settings.seconds
        chosen = [kind for kind in kinds if kind != "block"]
        queue = list[str]()

        def sleep(seconds: float) -> None:
            end = time.monotonic() + seconds
            while (left := end - time.monotonic()) > 0:
                time.sleep(min(left, 0.2))
                progress.update(time.monotonic() - begin, self._settings.seconds, doing)

        doing = ""
        while (left := until - time.monotonic()) > 0:
            doing = ""
            sleep(min(left, self._random.uniform(0.1, 0.5) * self._settings.lease))
            if chosen and until - time.monotonic() > self._settings.lease:
                if not queue:  # every kind comes once before any comes again
                    queue = self._random.sample(chosen, len(chosen))
                doing = queue.pop()
                self._inject(doing, sleep)

    def _inject(self, kind: str, sleep: Callable[[float], None]) -> None:
        for process in self._processes:
            if not process.alive:
                raise VerifyError(f"a client exited by itself: {process.last_error()}")
        most = len(self._processes) // (1 if kind == "delay" else 2)  # clients make progress even if all are slow
        indexes = self._random.sample(range(len(self._processes)), self._random.randint(1, most))
        length = self._random.choice((0.1, 0.3, 0.8, 1.3, 2.0)) * self._settings.lease
        slow = self._random.choice((0.03, 0.15, 0.3)) * self._settings.lease
        if kind == "kill":
            self._replace(indexes[0])
            return
        if kind in self._injector.kinds:
            self.faults.append(self._injector.make(kind, sleep))
            return
        victims, begin = [self._processes[index] for index in indexes], boottime()
        with ExitStack() as stack:
            for victim in victims:
                stack.enter_context(under(kind, victim, slow))
            sleep(length)
        self.faults += [InjectedFault(kind, victim.who, begin, boottime()) for victim in victims]

    def _replace(self, index: int) -> None:
        victim, begin = self._processes[index], boottime()
        victim.kill()
        self._deaths[victim.who] = begin, boottime()
        self.faults.append(InjectedFault("kill", victim.who, *self._deaths[victim.who]))
        self._processes[index] = self._new()
        self._processes[index].wait_ready()

    def end(self) -> dict[str, str]:
        """End all clients; return the last error of each one that failed."""
        bad = end_all(self._processes)
        return {process.who: process.last_error() for process in bad}

    def kill(self) -> None:
        """Kill the clients that still run."""
        self._stall_detector.stop()
        for process in self._processes:
            if process.alive:
                process.kill()

    def history(self, resource: Resource) -> History:
        """Build the history of the run."""
        records = list(from_files(path for path in self._journals if path.exists()))
        everyone = [str(number) for number in range(1, self._count + 1)]
        settings, suspensions = self._settings, self.suspensions
        conditions = RunConditions(
            settings.url, settings.lease, everyone, self.faults, suspensions, self._deaths, self._late
        )
        return build_history(records, resource.writes, conditions)


def _clean_up(client: Client) -> None:
    """Release the locks that dead clients still hold in the namespace of the run."""
    try:
        for info in client.holds():
            for holder in info.holders:
                if holder.token is not None:
                    client.force_release(info.name, holder.token)
    except StoreUnavailable:
        return  # the rest expires with its leases


def read_url(text: str | None) -> StoreURL:
    """Parse the URL of the store; None means the same as for `Client.from_url`."""
    from leasehold.stores.registry import hide

    return parse(hide(Secret(text) if text is not None else None))
