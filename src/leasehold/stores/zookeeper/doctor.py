"""Checks of `leasehold doctor` on an ensemble: version, members, ticks and timeouts, rights.

It needs no special rights: a fact that the server does not report becomes a note. It creates and removes a node
for locks and one for cells, the only proof that both can be made.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from leasehold._model import Finding, Severity
from leasehold._url import is_local
from leasehold.errors import LeaseholdError
from leasehold.stores._common.drivers import Answer
from leasehold.stores.zookeeper.connection.requests import EPHEMERAL, SEQUENCE, Node
from leasehold.stores.zookeeper.connection.settings import Settings
from leasehold.stores.zookeeper.nodes import Paths
from leasehold.stores.zookeeper.queue_nodes import QueueNodes

OLDEST = (3, 5, 3)
"""Oldest server with containers, and with creates that return the transaction."""

FEW_TICKS = 10
"""Fewest ticks in a session timeout. With fewer, a member that is cut off may hide an expiry; see ``store.py``."""

CONFIG = "/zookeeper/config"
"""The node in which an ensemble names its members, from 3.5."""

UNKNOWN = "unknown: the server does not report it"


async def diagnose(queue_nodes: QueueNodes, settings: Settings, paths: Paths, until: float) -> list[Finding]:
    """Check the ensemble.

    Raises:
        StoreUnavailable: there is no session.
    """
    transport = queue_nodes.transport
    session = await transport.ready(until)
    start = queue_nodes.now()
    _, config = await transport.ask_all((transport.sync("/"), transport.get(CONFIG)), until)
    latency = queue_nodes.now() - start
    members = len(re.findall(rb"^server\.\d+=", config.data, re.M)) if isinstance(config, Node) else 0
    conf = dict(part.split("=", 1) for part in (await transport.command("conf", until)).splitlines() if "=" in part)
    server = await transport.command("srvr", until)
    refused, cells_refused = [await _refused(queue_nodes, each, until) for each in (paths.space, paths.clock)]
    return [
        _version(server),
        *_ensemble(server, members, len(settings.hosts)),
        _timeout(settings.session_timeout, session.timeout, conf),
        _tick(session.timeout, conf.get("tickTime", "")),
        *_rights(refused, cells_refused),
        *_access(settings),
        Finding(Severity.OK, "round trip to the leader", f"{latency * 1000:.1f} ms"),
    ]


async def _refused(queue_nodes: QueueNodes, folder: str, until: float) -> str | None:
    """Create, read, write and remove a node as a lock does; return why that is refused, None if it is not."""
    transport = queue_nodes.transport
    try:
        create = transport.create(f"{folder}/doctor-", b"", EPHEMERAL | SEQUENCE)
        path = (await queue_nodes.make_in(folder, create, until)).path
        own = (transport.get(path), transport.set(path, b"x"), transport.children(folder), transport.delete(path))
        answers = await transport.ask_all(own, until)
    except LeaseholdError as error:
        return str(error)
    return next((type(answer).__name__ for answer in answers if isinstance(answer, Answer)), None)


def _version(server: str) -> Finding:
    found = re.search(r"Zookeeper version: (\d+)\.(\d+)\.(\d+)", server)
    if found is None:
        meaning = "it is known only that it supports all requests that locks need"
        remedy = "allow the commands srvr and conf: 4lw.commands.whitelist=srvr,conf"
        return Finding(Severity.NOTE, "version", UNKNOWN, meaning, remedy)
    text = ".".join(found.groups())
    if tuple(map(int, found.groups())) < OLDEST:
        return Finding(Severity.ERROR, "version", text, "it lacks requests that locks need", "use 3.5.3 or later")
    return Finding(Severity.OK, "version", text)


def _ensemble(server: str, members: int, known: int) -> Iterator[Finding]:
    mode = re.search(r"^Mode: (\S+)", server, re.M)
    role = mode[1] if mode else "unknown"
    if role == "standalone" or (not members and role == "unknown"):
        meaning = "while it is down no lock can be acquired; if its disk is lost, the order of tokens is lost"
        remedy = "run three or five members"
        yield Finding(Severity.WARNING, "ensemble", f"one server ({role})", meaning, remedy)
        return
    found = f"{members or 'an unknown number of'} members; connected to a {role}"
    if members and members % 2 == 0:
        meaning = f"it tolerates the loss of {(members - 1) // 2}, no more than with {members - 1} members"
        yield Finding(Severity.NOTE, "ensemble", found, meaning, "use an odd number")
    else:
        yield Finding(Severity.OK, "ensemble", found)
    if members > known:
        severity = Severity.WARNING if known == 1 else Severity.NOTE
        meaning = "a client fails over only to members that it knows"
        found = f"{known} of {members}"
        yield Finding(severity, "members in the URL", found, meaning, "name all members in the URL")


def _timeout(asked: float, granted: float, conf: Mapping[str, str]) -> Finding:
    found = f"{granted:g} s"
    if abs(asked - granted) <= 0.001:
        return Finding(Severity.OK, "session timeout", found, f"a crash blocks others for {found} and a tick at most")
    bounds = f"{conf.get('minSessionTimeout', '2 ticks')} to {conf.get('maxSessionTimeout', '20 ticks')} ms"
    meaning = f"{asked:g} s were requested; the server grants {bounds}. A crash blocks others for {found} and a tick"
    remedy = "request a timeout that it grants: ?session_timeout=…"
    return Finding(Severity.NOTE, "session timeout", found, meaning, remedy)


def _tick(granted: float, tick: str) -> Finding:
    if not tick.isdecimal():
        meaning = f"it is unknown whether the session timeout has at least {FEW_TICKS} ticks"
        return Finding(
            Severity.NOTE, "tick", UNKNOWN, meaning, "allow the command conf: 4lw.commands.whitelist=srvr,conf"
        )
    if granted * 1000 >= FEW_TICKS * int(tick):
        return Finding(Severity.OK, "tick", f"{tick} ms")
    meaning = (
        "the session timeout has so few ticks that a hold may seem valid after the leader has expired its session, "
        "if its member is cut off from the leader; fencing tokens still protect"
    )
    return Finding(
        Severity.WARNING, "tick", f"{tick} ms", meaning, f"request {FEW_TICKS} ticks or more, or shorten tickTime"
    )


def _rights(refused: str | None, cells_refused: str | None) -> Iterator[Finding]:
    remedy = "grant create, read, write and delete on the {} in the URL, or name credentials that have them"
    if refused is not None:
        yield Finding(Severity.ERROR, "rights", refused, "locks cannot be created there", remedy.format("node"))
        return
    yield Finding(Severity.OK, "rights", "nodes can be created, read, written and removed")
    if cells_refused is not None:  # with an empty namespace they are beside the URL's path
        meaning = "locks work, but not versioned values, once, cached, scheduled, latches and barriers"
        yield Finding(Severity.WARNING, "cells", cells_refused, meaning, remedy.format("parent of the node"))


def _access(settings: Settings) -> Iterator[Finding]:
    if settings.acl == "open":
        meaning = "every client may acquire or break every lock"
        remedy = "write user:password@ into the URL: then only that user may use the nodes"
        yield Finding(Severity.NOTE, "access", "open to every client that reaches the server", meaning, remedy)
    local = all(is_local(host) for host, _ in settings.hosts)
    if not settings.tls and not local:
        meaning = "any reader of the network traffic sees names and credentials"
        yield Finding(Severity.NOTE, "encryption", "none", meaning, "use a secure client port and zookeepers://")
