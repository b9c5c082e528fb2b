"""The checks of `leasehold doctor` on a cluster: each primary as a server, and slots, replicas and clocks of all."""

from __future__ import annotations

from collections.abc import Callable

from leasehold._model import Finding, Severity
from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores.redis.cluster.topology import Address, SlotMap, Topology
from leasehold.stores.redis.connection.base import MakeTransport, ReplyError, Transport, pack
from leasehold.stores.redis.doctor import doctor, group_checks
from leasehold.stores.redis.doctor.checks import number
from leasehold.stores.redis.keys import SLOTS
from leasehold.stores.redis.store import RedisStore

OK, NOTE, WARNING, ERROR = Severity

WITHIN = 5.0
"""Seconds for each reply of a node."""

FAILOVER = 3.0
"""Usual seconds from when a node is known to be down until its replica serves: the vote, and our pauses."""

CUT_OFF = "a primary that is cut off from most others stops within that timeout"

SETTINGS = ("cluster-node-timeout", "cluster-require-full-coverage")


async def diagnose(
    runtime: Runtime, make: MakeTransport, topology: Topology, known: SlotMap, store: Callable[[Address], RedisStore]
) -> list[Finding]:
    """Return the findings on the cluster.

    Raises:
        StoreUnavailable: no primary replies.
    """
    stores = [store(address) for address in known.primaries]
    each: dict[str, list[Finding]] = {}
    silent: dict[str, StoreUnavailable] = {}
    alive: list[RedisStore] = []
    for one, result in zip(stores, await runtime.gather(*[one.diagnose() for one in stores]), strict=True):
        if isinstance(result, StoreUnavailable):
            silent[one.where] = result
        elif isinstance(result, BaseException):
            raise result
        else:
            alive.append(one)
            each[one.where] = result
    if not alive:
        raise next(iter(silent.values()))
    found = group_checks.merged(each)
    transport = alive[0].transport
    config = await doctor.config(transport, SETTINGS)
    timeout = (number(config, "cluster-node-timeout") or 15_000) / 1000
    nodes = [topology.settings(node) for primary, others in known.replicas.items() for node in (primary, *others)]
    findings = [
        *(_silent(where, error) for where, error in silent.items()),
        _coverage(known, await _state(transport)),
        _full_coverage(config.get("cluster-require-full-coverage")),
        _replicas(topology, known),
        _votes(known),
        _detection(timeout),
        Finding(OK, "split brain", "none for long", CUT_OFF),
        group_checks.clocks(*await doctor.offsets(runtime, make, nodes), "at a failover or a slot's move"),
    ]
    return [*found, *(finding for finding in findings if finding is not None)]


async def _state(transport: Transport) -> str:
    reply = await transport.call(pack(b"CLUSTER", b"INFO"), within=WITHIN)
    if isinstance(reply, ReplyError):
        return "unknown"
    return "ok" if b"cluster_state:ok" in reply else "fail"


def _silent(where: str, error: StoreUnavailable) -> Finding:
    meaning = "names in its slots cannot be acquired or renewed until it is back, or a replica took over (liveness)"
    return Finding(ERROR, "primary", f"no findings on {where}: {error}", meaning, "check CLUSTER NODES")


def _coverage(known: SlotMap, state: str) -> Finding:
    served = sum(owner is not None for owner in known.owners)
    found = f"{served} of {SLOTS} slots are served, by {len(known.primaries)} primaries; cluster_state {state}"
    if served == SLOTS and state != "fail":
        return Finding(OK, "slots", found)
    meaning = "names in the other slots cannot be acquired (liveness)"
    return Finding(ERROR, "slots", found, meaning, "check CLUSTER NODES")


def _full_coverage(setting: str | None) -> Finding | None:
    if setting is None:
        return None
    found = f"cluster-require-full-coverage {setting}"
    if setting == "no":
        return Finding(OK, "coverage", found, "a dead shard does not affect the locks of the others")
    meaning = (
        "while one shard has no server, no name can be acquired or renewed: one failure stops all locks (liveness)"
    )
    return Finding(WARNING, "coverage", found, meaning, "CONFIG SET cluster-require-full-coverage no, on each node")


def _replicas(topology: Topology, known: SlotMap) -> Finding:
    alone = [topology.settings(primary).where for primary, others in known.replicas.items() if not others]
    if alone:
        meaning = "when it fails its names cannot be acquired (liveness), and its locks are forgotten (timed exclusion)"
        return Finding(WARNING, "replicas per shard", f"none: {', '.join(alone)}", meaning, "give each a replica")
    return Finding(OK, "replicas per shard", f"{min(len(others) for others in known.replicas.values())} or more")


def _votes(known: SlotMap) -> Finding | None:
    if len(known.primaries) >= 3:
        return None
    meaning = "most primaries must agree that one is down: with fewer than three there is no failover (liveness)"
    return Finding(WARNING, "votes", f"{len(known.primaries)} primaries", meaning, "run at least three primaries")


def _detection(seconds: float) -> Finding:
    meaning = f"when a primary fails, its names cannot be acquired for about {seconds + FAILOVER:g} s (liveness)"
    return Finding(OK, "failover", f"cluster-node-timeout {seconds * 1000:.0f}", meaning)
