"""The checks of `leasehold doctor` on sentinels: which reply, whether they agree, and what a failover would do."""

from __future__ import annotations

from collections.abc import Sequence

from leasehold._model import Finding, Severity
from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores.redis.connection.base import MakeTransport, Transport
from leasehold.stores.redis.doctor import doctor, group_checks
from leasehold.stores.redis.doctor.checks import number
from leasehold.stores.redis.sentinel.sentinel import ADDRESS_RIGHT, Answer, Sentinels, SentinelSettings

OK, NOTE, WARNING, ERROR = Severity

WITHIN = 2.0
"""Seconds for each reply of a server."""

FAILOVER = 4.0
"""Usual seconds from when a primary is known to be down until another serves: votes, promotion, our pauses."""


async def diagnose(
    runtime: Runtime, make: MakeTransport, sentinels: Sentinels, watched: SentinelSettings, transport: Transport
) -> list[Finding]:
    """Return the findings on the sentinels, and on the replicas that they know."""
    answers = await sentinels.ask(WITHIN)
    found = [answer for answer in answers if isinstance(answer, Answer)]
    findings: list[Finding | None] = [
        _answering(watched, answers),
        *_agreeing(found),
        _rights(watched, answers),
    ]
    if found:
        newest = max(found, key=lambda answer: answer.generation)
        config = await doctor.config(transport, ("min-replicas-to-write", "min-replicas-max-lag"))
        detection = int(newest.fields.get("down-after-milliseconds", 0)) / 1000
        least, lag = (number(config, name) for name in ("min-replicas-to-write", "min-replicas-max-lag"))
        findings += [
            _votes(newest),
            _successors(newest),
            _detection(detection),
            group_checks.cut_off(least, lag, detection, "down-after-milliseconds"),
            await _clocks(runtime, make, sentinels, watched, newest),
        ]
    return [finding for finding in findings if finding is not None]


def _answering(watched: SentinelSettings, answers: Sequence[Answer | BaseException]) -> Finding:
    silent = [
        f"{settings.where}: {answer}"
        for settings, answer in zip(watched.sentinels, answers, strict=True)
        if isinstance(answer, BaseException)
    ]
    total = len(answers)
    found = f"{total - len(silent)} of {total} in the URL reply"
    if not silent and total >= 3:
        return Finding(OK, "sentinels", found)
    if not silent:
        meaning = "while these are down, no client can find the primary (liveness)"
        return Finding(NOTE, "sentinels", found, meaning, "name all sentinels in the URL")
    found += f"; {'; '.join(silent)}"
    if len(silent) * 2 < total:
        return Finding(WARNING, "sentinels", found, "the others still serve; one more may fail", "check them")
    return Finding(ERROR, "sentinels", found, "without a majority there is no failover (liveness)", "check them")


def _agreeing(found: Sequence[Answer]) -> list[Finding]:
    named = sorted({f"{answer.host}:{answer.port} (epoch {answer.generation})" for answer in found})
    if len(named) < 2:
        return []
    meaning = (
        "a failover is under way, or some were cut off; the highest epoch counts, and the server confirms its role"
    )
    return [Finding(WARNING, "agreement", f"they name {' and '.join(named)}", meaning, "check again in a minute")]


def _rights(watched: SentinelSettings, answers: Sequence[Answer | BaseException]) -> Finding | None:
    denying = [
        settings.where
        for settings, answer in zip(watched.sentinels, answers, strict=True)
        if isinstance(answer, Answer) and answer.denied
    ]
    if not denying:
        return None
    found = f"the user lacks the right {ADDRESS_RIGHT} at {', '.join(denying)}"
    meaning = "clients may follow a failover only when it ends, which can take its failover-timeout (liveness)"
    return Finding(NOTE, "rights at the sentinels", found, meaning, "grant it to the user of the clients")


def _votes(answer: Answer) -> Finding:
    others, quorum = int(answer.fields.get("num-other-sentinels", 0)), int(answer.fields.get("quorum", 0))
    found = f"{others + 1} sentinels know of each other, quorum {quorum}"
    if others < 2:
        meaning = "with fewer than three, no failover happens when one is down (liveness)"
        return Finding(WARNING, "quorum", found, meaning, "run at least three sentinels, each on its own host")
    if quorum <= (others + 1) // 2:
        meaning = "a minority may declare the primary down; a majority must still vote for its successor"
        return Finding(NOTE, "quorum", found, meaning, "SENTINEL SET <name> quorum, to more than half of them")
    return Finding(OK, "quorum", found)


def _successors(answer: Answer) -> Finding:
    count = int(answer.fields.get("num-slaves", 0))
    if count:
        return Finding(OK, "successors", f"{count} replicas known to the sentinels")
    meaning = "when the primary is down nobody can acquire (liveness), and all locks are forgotten (timed exclusion)"
    return Finding(ERROR, "successors", "no replica", meaning, "run at least one replica")


def _detection(seconds: float) -> Finding:
    meaning = f"when the primary fails, nobody can acquire for about {seconds + FAILOVER:g} s (liveness)"
    return Finding(OK, "failover", f"down-after-milliseconds {seconds * 1000:.0f}", meaning)


async def _clocks(
    runtime: Runtime, make: MakeTransport, sentinels: Sentinels, watched: SentinelSettings, answer: Answer
) -> Finding | None:
    try:
        replicas = await sentinels.replicas(WITHIN)
    except StoreUnavailable:
        replicas = []
    nodes = [watched.server.at(host, port) for host, port in ((answer.host, answer.port), *replicas)]
    return group_checks.clocks(*await doctor.offsets(runtime, make, nodes))
