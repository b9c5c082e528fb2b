"""Checks of `leasehold doctor` on an ensemble: version, members, ticks and timeouts, rights.

It needs no special rights: a fact that the server does not report becomes a note. It creates and removes one node, the
only proof that locks can be made.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from leasehold._model import Finding, Severity
from leasehold.errors import LeaseholdError
from leasehold.stores.zookeeper.connection.errors import Answer
from leasehold.stores.zookeeper.connection.requests import EPHEMERAL, SEQUENCE, Node
from leasehold.stores.zookeeper.connection.session import Session, Transport
from leasehold.stores.zookeeper.connection.settings import Settings
from leasehold.stores.zookeeper.nodes import Paths
from leasehold.stores.zookeeper.queue_nodes import QueueNodes

OLDEST = (3, 5, 3)
"""Oldest server with containers, and with creates that return the transaction."""

FEW_TICKS = 10
"""Least ticks in a session timeout; with fewer a member that is cut off may hide an expiry; see ``store.py``."""

CONFIG = "/zookeeper/config"
"""The node in which an ensemble names its members, from 3.5."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the server reported. A missing text is empty; ``refused`` is None if the rights suffice."""

    settings: Settings
    session: Session
    server: str
    conf: dict[str, str]
    members: int
    latency: float
    refused: str | None


async def diagnose(
    transport: Transport, queue_nodes: QueueNodes, settings: Settings, paths: Paths, until: float
) -> list[Finding]:
    """Check the ensemble.

    Raises:
        StoreUnavailable: there is no session.

    """
    session = await transport.ready(until)
    start = queue_nodes.now()
    _, config = await transport.ask_all((transport.sync("/"), transport.get(CONFIG)), until)
    latency = queue_nodes.now() - start
    members = len(re.findall(rb"^server\.\d+=", config.data, re.M)) if isinstance(config, Node) else 0
    conf = dict(part.split("=", 1) for part in (await transport.command("conf", until)).splitlines() if "=" in part)
    facts = Facts(
        settings,
        session,
        await transport.command("srvr", until),
        conf,
        members,
        latency,
        await _refused(transport, queue_nodes, paths, until),
    )
    return list(_findings(facts))


async def _refused(transport: Transport, queue_nodes: QueueNodes, paths: Paths, until: float) -> str | None:
    """Create, read, write and remove a node as a lock does; return why that is refused, None if it is not."""
    try:
        for _ in range(2):
            create = transport.create(f"{paths.clock}/doctor-", b"", EPHEMERAL | SEQUENCE)
            (made,) = await transport.ask_all((create,), until)
            if isinstance(made, Node):
                own = (transport.get(made.path), transport.set(made.path, b"x"), transport.children(paths.clock))
                answers = await transport.ask_all((*own, transport.delete(made.path)), until)
                return next((type(answer).__name__ for answer in answers if isinstance(answer, Answer)), None)
            await queue_nodes.make_parents(paths.clock, until)
    except LeaseholdError as error:
        return str(error)
    return "the parent node cannot be created"


def _findings(facts: Facts) -> Iterator[Finding]:
    yield _version(facts)
    yield from _ensemble(facts)
    yield from _timeouts(facts)
    yield from _rights(facts)
    yield Finding(Severity.OK, "round trip to the leader", f"{facts.latency * 1000:.1f} ms")


def _version(facts: Facts) -> Finding:
    found = re.search(r"Zookeeper version: (\d+)\.(\d+)\.(\d+)", facts.server)
    if found is None:
        return Finding(
            Severity.NOTE,
            "version",
            "unknown: the server does not report it",
            "it is known only that it supports all requests that locks need",
            "allow the commands srvr and conf: 4lw.commands.whitelist=srvr,conf",
        )
    numbers = tuple(map(int, found.groups()))
    text = ".".join(found.groups())
    if numbers < OLDEST:
        return Finding(Severity.ERROR, "version", text, "it lacks requests that locks need", "use 3.5.3 or later")
    return Finding(Severity.OK, "version", text)


def _ensemble(facts: Facts) -> Iterator[Finding]:
    mode = re.search(r"^Mode: (\S+)", facts.server, re.M)
    role = mode[1] if mode else "unknown"
    known = len(facts.settings.hosts)
    if role == "standalone" or (not facts.members and role == "unknown"):
        yield Finding(
            Severity.WARNING,
            "ensemble",
            f"one server ({role})",
            "while it is down no lock can be acquired; if its disk is lost, the order of tokens is lost",
            "run three or five members",
        )
        return
    found = f"{facts.members or 'an unknown number of'} members; connected to a {role}"
    if facts.members and facts.members % 2 == 0:
        meaning = f"it tolerates the loss of {(facts.members - 1) // 2}, no more than with {facts.members - 1} members"
        yield Finding(Severity.NOTE, "ensemble", found, meaning, "use an odd number")
    else:
        yield Finding(Severity.OK, "ensemble", found)
    if facts.members > known:
        yield Finding(
            Severity.WARNING if known == 1 else Severity.NOTE,
            "members in the URL",
            f"{known} of {facts.members}",
            "a client fails over only to members that it knows",
            "name all members in the URL",
        )


def _timeouts(facts: Facts) -> Iterator[Finding]:
    asked, granted = facts.settings.session_timeout, facts.session.timeout
    found = f"{granted:g} s"
    if abs(asked - granted) > 0.001:
        bounds = (
            f"{facts.conf.get('minSessionTimeout', '2 ticks')} to {facts.conf.get('maxSessionTimeout', '20 ticks')} ms"
        )
        meaning = (
            f"{asked:g} s were requested; the server grants {bounds}. A crash blocks others for {found} and a tick"
        )
        yield Finding(
            Severity.NOTE, "session timeout", found, meaning, "request a timeout that it grants: ?session_timeout=…"
        )
    else:
        yield Finding(Severity.OK, "session timeout", found, f"a crash blocks others for {found} and a tick at most")
    tick = facts.conf.get("tickTime", "")
    if not tick.isdecimal():
        yield Finding(
            Severity.NOTE,
            "tick",
            "unknown: the server does not report it",
            f"it is unknown whether the session timeout has at least {FEW_TICKS} ticks",
            "allow the command conf: 4lw.commands.whitelist=srvr,conf",
        )
    elif granted * 1000 < FEW_TICKS * int(tick):
        yield Finding(
            Severity.WARNING,
            "tick",
            f"{tick} ms",
            "the session timeout has so few ticks that a hold may seem valid after the leader has expired its session, "
            "if its member is cut off from the leader; fencing tokens still protect",
            f"request {FEW_TICKS} ticks or more, or shorten tickTime",
        )
    else:
        yield Finding(Severity.OK, "tick", f"{tick} ms")


def _rights(facts: Facts) -> Iterator[Finding]:
    if facts.refused is not None:
        yield Finding(
            Severity.ERROR,
            "rights",
            facts.refused,
            "locks cannot be created there",
            "grant create, read, write and delete on the node in the URL, or name credentials that have them",
        )
    else:
        yield Finding(Severity.OK, "rights", "nodes can be created, read, written and removed")
    settings = facts.settings
    if settings.acl == "open":
        yield Finding(
            Severity.NOTE,
            "access",
            "open to every client that reaches the server",
            "every client may acquire or break every lock",
            "write user:password@ into the URL: then only that user may use the nodes",
        )
    if not settings.tls and not all(
        host in ("localhost", "::1") or host.startswith("127.") for host, _ in settings.hosts
    ):
        yield Finding(
            Severity.NOTE,
            "encryption",
            "none",
            "whoever can read the network traffic sees names and credentials",
            "use a secure client port and zookeepers://",
        )
