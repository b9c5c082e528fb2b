"""Findings of `leasehold doctor` about a Redlock: about all nodes, and about each node as about any server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from leasehold._model import Finding, Severity
from leasehold._runtimes.base import Runtime
from leasehold.errors import Unsupported
from leasehold.stores.redis.connection.base import NotPermitted
from leasehold.stores.redis.doctor import doctor
from leasehold.stores.redis.redlock.node import Node
from leasehold.stores.redis.redlock.nodes import QuorumNodes, nodes_of_same_server

OK, NOTE, WARNING, ERROR = Severity

WITHIN = 20.0
"""Seconds that the check of one node may take."""

MEET_WITHIN = 5.0
"""Seconds that a node may take to report its identity."""

APART = 1.0
"""Seconds between the clocks of two nodes that are worth a note."""

OF_ONE = ("persistence", "replicas", "split brain")
"""Findings that weaken a promise of one server, and none of a Redlock."""

FORGETFUL = ("none", "snapshots only")
"""Findings of `checks.persistence` on a node that forgets votes in a crash."""


async def diagnose(runtime: Runtime, nodes: QuorumNodes, namespace: str, quarantine: float) -> list[Finding]:
    """Check all nodes in parallel.

    Raises:
        StoreUnavailable: no node answers.
    """

    async def look(node: Node) -> tuple[float | None, list[Finding]]:
        found = await _of_node(runtime, node, namespace)
        return (await doctor.clock_of(runtime, node.transport))[1], found

    call = nodes.ask_in_background(look, even_skipped=True)
    answers = await call.linger(lambda _: False, runtime.now() + WITHIN)
    if not answers:
        raise nodes.too_few(call, answers, "answered")
    clocks: dict[str, float] = {}
    each: dict[str, list[Finding]] = {}
    silent: dict[str, str] = {}
    for node in nodes.nodes:
        if node.index not in answers:
            silent[node.where] = str(call.failures.get(node.index, "no answer in time"))
            continue
        ahead, each[node.where] = answers[node.index]
        if ahead is not None:
            clocks[node.where] = ahead
    moving = [node.where for node in nodes.nodes if node.member.fails_over]
    of_all = (
        _number(len(nodes)),
        _quorum(nodes, silent),
        _duplicates(nodes.nodes),
        _clock(clocks),
        _memory(each, quarantine, moving),
    )
    return [*filter(None, of_all), *(_named(where, one) for where, found in each.items() for one in found)]


def _number(nodes: int) -> Finding:
    if nodes % 2:
        spared = (nodes - 1) // 2
        return Finding(OK, "nodes", f"{nodes}", f"{spared} of them may be down, stalled or cut off at a time")
    meaning = f"{nodes} nodes tolerate no more failures than {nodes - 1}, and split votes are more frequent"
    return Finding(WARNING, "nodes", f"{nodes}, an even number", meaning, "leave one out, or add one")


def _quorum(nodes: QuorumNodes, silent: Mapping[str, str]) -> Finding | None:
    if not silent:
        return None
    reasons = "; ".join(f"{where}: {why}" for where, why in silent.items())
    found = f"{len(silent)} of {len(nodes)} do not answer: {reasons}"
    spare = len(nodes) - len(silent) - nodes.majority
    if spare < 0:
        return Finding(ERROR, "quorum", found, "no client can acquire or renew (liveness)", "bring them back")
    more = f"{spare} more may fail" if spare else "after one more failure they stop (liveness)"
    return Finding(WARNING, "quorum", found, f"locks still work; {more}", "bring them back")


def _duplicates(nodes: Sequence[Node]) -> Finding | None:
    if not (same := nodes_of_same_server(nodes)):
        return None
    names = ", ".join(node.where for node in same)
    meaning = "it has several votes: one failure takes all of them, and two may hold a lock (timed exclusion)"
    return Finding(ERROR, "one server twice", names, meaning, "name each server once")


def _clock(ahead: Mapping[str, float]) -> Finding | None:
    if len(ahead) < 2:
        return None
    slow, fast = min(ahead, key=ahead.__getitem__), max(ahead, key=ahead.__getitem__)
    apart = ahead[fast] - ahead[slow]
    found = f"{apart:.3f} s apart at most ({slow} and {fast})"
    meaning = "the difference is harmless, but a jump of one node's clock takes away its vote (timed exclusion)"
    severity = OK if apart < APART else NOTE
    return Finding(severity, "clocks of the nodes", found, meaning, "" if severity is OK else "let NTP slew them")


def _memory(each: Mapping[str, Sequence[Finding]], quarantine: float, moving: Sequence[str]) -> Finding:
    """Check what a node forgets in a restart, or a node in ``moving`` in a failover."""
    if quarantine:
        found = f"quarantine of {quarantine:g} s"
        return Finding(OK, "restart of a node", found, "a node that may have forgotten votes gives none for that long")
    forgetful = [
        where
        for where, found in each.items()
        if where in moving or any(one.subject == "persistence" and one.found.startswith(FORGETFUL) for one in found)
    ]
    if not forgetful:
        meaning = "after a power loss a node forgets what its append-only file had not written"
        return Finding(NOTE, "restart of a node", "no quarantine, but nodes keep their data", meaning)
    meaning = "after a restart or failover a node may vote again: two may hold (timed exclusion); tokens still increase"
    remedy = "?quarantine=SECONDS, at least the longest lease, in the URL of all clients; or appendfsync always"
    found = f"no quarantine, and forgetful: {', '.join(forgetful)}"
    return Finding(WARNING, "restart of a node", found, meaning, remedy)


async def _of_node(runtime: Runtime, node: Node, namespace: str) -> list[Finding]:
    """Check one node's settings, and the rights of the user there."""
    denied = ""
    if node.identity is None:
        try:
            await node.meet(MEET_WITHIN)
        except Unsupported:  # two nodes are the same server, which `_duplicates` reports
            pass
        except NotPermitted as error:
            denied = str(error)
    found = await node.member.diagnose(runtime, node.transport, namespace, node.channel)
    if denied and not any(one.subject == "rights" and one.severity is ERROR for one in found):
        found = [one for one in found if one.subject != "rights"]  # those of any server; a quarantine needs more
        found.append(Finding(ERROR, "rights", denied, "it gives no vote (liveness)", "grant them to its user"))
    return found


def _named(where: str, finding: Finding) -> Finding:
    """Name the node in a finding. A weakness of one node is at most a note: one forgetful node is harmless."""
    severity = min(finding.severity, NOTE) if finding.subject in OF_ONE else finding.severity
    return replace(finding, severity=severity, subject=f"{where} {finding.subject}")
