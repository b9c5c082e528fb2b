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
from leasehold.stores.redis.redlock.nodes import QuorumNodes, twins

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


async def diagnose(runtime: Runtime, quorum_nodes: QuorumNodes, namespace: str, quarantine: float) -> list[Finding]:
    """Check all nodes in parallel.

    Raises:
        StoreUnavailable: no node answers.

    """

    async def look(node: Node) -> tuple[float | None, list[Finding]]:
        found = await _of_node(runtime, node, namespace)
        return (await doctor.clock_of(runtime, node.transport))[1], found

    call = quorum_nodes.ask_in_background(look, even_skipped=True)
    answers = await call.linger(lambda _: False, runtime.now() + WITHIN)
    if not answers:
        raise quorum_nodes.too_few(call, answers, "answered")
    silent = {node.where: str(call.failures.get(node.index, "no answer in time")) for node in quorum_nodes.nodes}
    for index in answers:
        del silent[quorum_nodes.nodes[index].where]
    clocks = {quorum_nodes.nodes[index].where: ahead for index, (ahead, _) in answers.items() if ahead is not None}
    each = {quorum_nodes.nodes[index].where: found for index, (_, found) in sorted(answers.items())}
    moving = [node.where for node in quorum_nodes.nodes if node.member.fails_over]
    forgetting = memory(each, quarantine, moving)
    of_all = [
        number(len(quorum_nodes)),
        quorum(quorum_nodes, silent),
        duplicates(quorum_nodes.nodes),
        clock(clocks),
        forgetting,
    ]
    return [*filter(None, of_all), *(_named(where, one) for where, found in each.items() for one in found)]


def number(nodes: int) -> Finding:
    """Check the number of nodes."""
    if nodes % 2:
        spared = (nodes - 1) // 2
        return Finding(OK, "nodes", f"{nodes}", f"{spared} of them may be down, stalled or cut off at a time")
    meaning = f"{nodes} nodes tolerate no more failures than {nodes - 1}, and split votes are more frequent"
    return Finding(WARNING, "nodes", f"{nodes}, an even number", meaning, "leave one out, or add one")


def quorum(quorum_nodes: QuorumNodes, silent: Mapping[str, str]) -> Finding | None:
    """Check whether enough nodes answer."""
    if not silent:
        return None
    left = len(quorum_nodes) - len(silent)
    found = f"{len(silent)} of {len(quorum_nodes)} do not answer: " + "; ".join(
        f"{at}: {why}" for at, why in silent.items()
    )
    if left < quorum_nodes.majority:
        return Finding(ERROR, "quorum", found, "no client can acquire or renew (liveness)", "bring them back")
    spare = left - quorum_nodes.majority
    meaning = (
        f"locks still work; {spare} more may fail"
        if spare
        else "locks still work; after one more failure they stop (liveness)"
    )
    return Finding(WARNING, "quorum", found, meaning, "bring them back")


def duplicates(nodes: Sequence[Node]) -> Finding | None:
    """Check whether two nodes are the same server."""
    if not (same := twins(nodes)):
        return None
    names = ", ".join(node.where for node in same)
    meaning = "it has several votes: one failure takes all of them, and two may hold a lock (timed exclusion)"
    return Finding(ERROR, "one server twice", names, meaning, "name each server once")


def clock(ahead: Mapping[str, float]) -> Finding | None:
    """Compare the clocks of the nodes."""
    if len(ahead) < 2:
        return None
    slow, fast = min(ahead, key=lambda where: ahead[where]), max(ahead, key=lambda where: ahead[where])
    apart = ahead[fast] - ahead[slow]
    found = f"{apart:.3f} s apart at most ({slow} and {fast})"
    meaning = "the difference is harmless, but a jump of one node's clock takes away its vote (timed exclusion)"
    severity = OK if apart < APART else NOTE
    return Finding(severity, "clocks of the nodes", found, meaning, "" if severity is OK else "let NTP slew them")


def memory(each: Mapping[str, Sequence[Finding]], quarantine: float, moving: Sequence[str]) -> Finding:
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
    return Finding(
        WARNING, "restart of a node", f"no quarantine, and forgetful: {', '.join(forgetful)}", meaning, remedy
    )


async def _of_node(runtime: Runtime, node: Node, namespace: str) -> list[Finding]:
    """Check one node's settings, and the rights of the user there."""
    denied = ""
    if node.identity is None:
        try:
            await node.meet(MEET_WITHIN)
        except Unsupported:  # two nodes are the same server, which `duplicates` reports
            pass
        except NotPermitted as error:
            denied = str(error)
    found = await node.member.diagnose(runtime, node.transport, namespace, node.channel)
    if denied and not any(one.subject == "rights" and one.severity is Severity.ERROR for one in found):
        found = [one for one in found if one.subject != "rights"]  # those of any server; a quarantine needs more
        found.append(Finding(Severity.ERROR, "rights", denied, "it gives no vote (liveness)", "grant them to its user"))
    return found


def _named(where: str, finding: Finding) -> Finding:
    """Name the node in a finding. A weakness of one node is at most a note: one forgetful node is harmless."""
    severity = min(finding.severity, NOTE) if finding.subject in OF_ONE else finding.severity
    return replace(finding, severity=severity, subject=f"{where} {finding.subject}")
