"""Which rights the server's user lacks for a layout: asked before the first claim, so that none fails half-way."""

from __future__ import annotations

from collections.abc import Sequence

from leasehold._model import Ticket
from leasehold.layouts.redis.layout import Layout
from leasehold.stores.redis import keys
from leasehold.stores.redis.connection.base import NotPermitted, ReplyError, Transport, pack
from leasehold.stores.redis.scripts import Script

PAGE = "docs/interop.md"

KNOWN = pack(b"EVALSHA", b"0" * 40, b"0")
"""Runs a script that no server knows."""

READ = Script("read", b"return 0", b"0" * 40)
"""Needs the right to its keys, and to run scripts."""


async def missing(
    transport: Transport, layout: Layout, namespace: str, name: str, ticket: Ticket, channel: bytes, within: float
) -> Sequence[str]:
    """Return the rights that a lock needs and the user lacks, as access rules.

    Args:
        transport: to the server.
        layout: of the lock.
        namespace: of the client.
        name: of the lock.
        ticket: of its kind.
        channel: that of the client; not used where the other library notifies.
        within: seconds for each of two replies.

    Raises:
        StoreUnavailable: no answer.
    """
    kind = ticket.terms.mode.kind
    lock, scripts = layout.lock_key(namespace, name), layout.scripts_of(kind)
    topic = layout.topic(lock, ticket)
    all_keys = [*layout.keys(namespace, name, kind), *layout.keys_inside(lock, kind)]
    args = topic or channel, layout.message(lock) if topic else b"", *scripts.commands
    reply = await transport.call(scripts.rights.by_text(all_keys, args), within=within)
    if isinstance(reply, ReplyError):
        if reply.code != "NOPERM":
            return ()  # the claim will get it, too
        if " key" not in str(reply):
            return ("+eval",)
        reads = await transport.call_all([READ.by_text([key], ()) for key in all_keys], within=within)
        denied = [key for key, answer in zip(all_keys, reads, strict=True) if isinstance(answer, ReplyError)]
        return sorted({layout.rule_of(namespace, name, key) for key in denied})
    rule = f"&{topic.partition(lock)[0].decode().rstrip('{')}*" if topic else keys.channel_rule(namespace)
    lacking = [rule if word == b"&" else word.decode() for word in reply]
    return list(dict.fromkeys([*lacking, *await _outside(transport, topic, rule, within)]))


async def _outside(transport: Transport, topic: bytes, rule: str, within: float) -> Sequence[str]:
    """Return what is lacking of the rights that no script can try: those to subscribe and to run a script again."""
    commands = [KNOWN]
    if topic:
        probed = topic + b":rights"  # not the channel itself: another waiter may follow that
        commands = [pack(b"SUBSCRIBE", probed), pack(b"UNSUBSCRIBE", probed), KNOWN]
    reply = await transport.call(b"".join(commands), within=within)  # pushes are no replies: one follows
    if not isinstance(reply, ReplyError) or reply.code != "NOPERM":
        return ()
    if len(commands) > 1:
        transport.hang_up()  # after a refusal of the first command the replies to the others follow
    if "channel" in str(reply):
        return (rule,)
    words = ("evalsha", "unsubscribe", "subscribe")
    return [f"+{next(word for word in words if word in str(reply))}"]


def error(where: str, lacking: Sequence[str]) -> NotPermitted:
    """Return the error that names the rights."""
    which = f"the right{'s' if len(lacking) > 1 else ''} {' '.join(lacking)}" if lacking else "a right"
    return NotPermitted(f"Redis at {where}: its user lacks {which}; grant what is listed in {PAGE}")
