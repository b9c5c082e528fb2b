"""`leasehold doctor` on one Redis server: the facts are read here, and ``checks.py`` says what they mean.

It works with any rights: a note names the facts that the user may not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from leasehold._model import Finding
from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores.redis import keys
from leasehold.stores.redis.connection.base import (
    MakeTransport,
    NotPermitted,
    ReplyError,
    Transport,
    info_fields,
    pack,
)
from leasehold.stores.redis.connection.settings import Settings
from leasehold.stores.redis.doctor import foreign, layout
from leasehold.stores.redis.doctor.checks import CHECKS, Facts
from leasehold.stores.redis.rights import missing_rights

WITHIN = 5.0
"""Seconds for each reply of the server."""

ROUNDS = 5
"""How often the server's clock is read; the fastest reply counts."""

ASKED = (
    "save",
    "appendfsync",
    "timeout",
    "tcp-keepalive",
    "min-replicas-to-write",
    "min-replicas-max-lag",
    "client-output-buffer-limit",
    "maxclients",
)
"""Settings that are read one by one, since some of the others are secret."""


async def diagnose(
    runtime: Runtime, transport: Transport, settings: Settings, namespace: str, channel: bytes
) -> list[Finding]:
    """Return the findings on the server.

    Raises:
        StoreUnavailable: it does not reply, or is a replica.
        Unsupported: it is too old, or of an unsupported kind.
    """
    latency, ahead = await clock_of(runtime, transport)
    facts = Facts(
        where=settings.where,
        hello=transport.facts(),
        info=await _info(transport),
        config=await config(transport, ASKED),
        lacking=await _lacking(transport, namespace, channel),
        latency=latency,
        ahead=ahead,
        encrypted=settings.encrypted,
        verified=settings.verified,
        local=settings.local,
    )
    found = [*(check(facts) for check in CHECKS), await layout.finding(transport, namespace)]
    return [finding for finding in (*found, await foreign.finding(transport)) if finding is not None]


async def clock_of(runtime: Runtime, transport: Transport) -> tuple[float | None, float | None]:
    """Return seconds for a round trip, and seconds by which the server's wall clock is ahead of ours."""
    best: tuple[float, float] | None = None
    for _ in range(ROUNDS):
        sent, wall = runtime.now(), runtime.wall_us()
        reply = await transport.call(pack(b"TIME"), within=WITHIN)
        took = runtime.now() - sent
        if isinstance(reply, ReplyError):
            return None, None
        if best is None or took < best[0]:
            best = took, int(reply[0]) + int(reply[1]) / 1e6 - wall / 1e6 - took / 2
    return best or (None, None)


async def _info(transport: Transport) -> dict[str, str] | None:
    reply = await transport.call(pack(b"INFO"), within=WITHIN)
    if isinstance(reply, ReplyError):
        return None
    return info_fields(reply)


async def offsets(
    runtime: Runtime, make: MakeTransport, nodes: Sequence[Settings]
) -> tuple[dict[str, float], Sequence[str]]:
    """Return seconds by which each server's clock is ahead of ours, by address, and the servers without a reply."""

    async def ask(settings: Settings) -> float | None:
        transport = make(runtime, replace(settings, any_role=True), b"", lambda _: None, lambda: None)
        try:
            return (await clock_of(runtime, transport))[1]
        finally:
            await transport.close()

    answers = await runtime.gather(*[ask(settings) for settings in nodes])
    known = {node.where: answer for node, answer in zip(nodes, answers, strict=True) if isinstance(answer, float)}
    return known, [node.where for node in nodes if node.where not in known]


async def config(transport: Transport, names: Sequence[str]) -> dict[str, str]:
    """Return the settings that the user may read; others are missing."""
    known: dict[str, str] = {}
    replies = await transport.call_all([pack(b"CONFIG", b"GET", name.encode()) for name in names], within=WITHIN)
    for reply in replies:
        if isinstance(reply, dict):
            values = cast(dict[bytes, bytes], reply)
            known.update((key.decode(), value.decode("utf-8", "replace")) for key, value in values.items())
    return known


async def _lacking(transport: Transport, namespace: str, channel: bytes) -> Sequence[str]:
    found = await missing_rights(transport, namespace, channel, within=WITHIN)
    if isinstance(found, ReplyError):
        return ["+eval" if " key" not in str(found) else keys.key_rule(namespace)] if found.code == "NOPERM" else []
    lacking = list(found)
    for command, args in (
        ("+evalsha", (b"EVALSHA", b"0" * 40, b"0")),
        ("+scan", (b"SCAN", b"0", b"MATCH", keys.lock_pattern(namespace, ""), b"COUNT", b"1")),
    ):
        reply = await transport.call(pack(*args), within=WITHIN)
        if isinstance(reply, ReplyError) and reply.code == "NOPERM":
            lacking.append(command)
    try:
        await transport.listen(WITHIN)
    except NotPermitted as error:
        mode = "+subscribe" if "command" in str(error) else keys.channel_rule(namespace)
        lacking += [] if mode in lacking else [mode]
    except StoreUnavailable:
        pass  # not a missing right; waiters will get the error
    return lacking
