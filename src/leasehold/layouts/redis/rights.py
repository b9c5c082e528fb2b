"""Which rights the server's user lacks for a layout: asked before the first claim, so that none fails half-way."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from leasehold._model import Ticket
from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreUnavailable
from leasehold.layouts.redis.layout import Layout
from leasehold.stores.redis import keys
from leasehold.stores.redis.connection.base import (
    ASKING,
    SHARDED_SINCE,
    NotPermitted,
    ReplyError,
    Transport,
    pack,
    refused,
    version_of,
)
from leasehold.stores.redis.scripts import Script

PAGE = "docs/interop.md"

KNOWN = pack(b"EVALSHA", b"0" * 40, b"0")
"""Runs a script that no server knows."""

READ = Script("read", b"return 0", b"0" * 40)
"""Needs the right to its keys, and to run scripts."""

TRIED = b":rights\xff"
"""What follows the name of a channel in that of the one that is tried: no name of a lock ends so, as it is no UTF-8."""

Left = Callable[[], float]
"""Returns how many seconds are left, above 0."""


def deadline(runtime: Runtime, within: float) -> Left:
    """Begin a span of so many seconds."""
    until = runtime.now() + within
    return lambda: max(until - runtime.now(), 0.001)


async def missing(
    transport: Transport,
    layout: Layout,
    namespace: str,
    name: str,
    ticket: Ticket,
    channel: bytes,
    left: Left,
    *,
    locks: bool = True,
) -> Sequence[str]:
    """Return the rights that a lock needs and the user lacks, as access rules.

    Args:
        transport: to the server.
        layout: of the lock.
        namespace: of the client.
        name: of the lock.
        ticket: of its kind.
        channel: that of the client; not used where the other library notifies.
        left: the time for all replies.
        locks: whether the keys of the lock itself are tried, in addition to our own.

    Raises:
        ReplyError: the server answered that it can run no script now, or here.
        StoreUnavailable: no answer.
    """
    kind = ticket.terms.mode.kind
    lock, scripts = layout.lock_key(namespace, name), layout.scripts_of(kind)
    topic = layout.topic(lock, ticket)
    all_keys = [*layout.keys(namespace, name, kind), *layout.keys_inside(lock, kind)]
    if not locks:
        all_keys = [all_keys[1]] * len(all_keys)
    args = b"" if topic else channel, topic + TRIED if topic else b"", *scripts.commands
    reply = await transport.call(scripts.rights.by_text(all_keys, args), within=left())
    if denied(reply):
        if " key" not in str(reply):
            return ("+eval",)
        reads = await transport.call_all([READ.by_text([key], ()) for key in all_keys], within=left())
        those = [key for key, answer in zip(all_keys, reads, strict=True) if denied(answer)]
        return sorted({layout.rule_of(namespace, name, key) for key in those})
    rules = {b"&1": keys.channel_rule(namespace), b"&2": rule_of(topic, lock)}
    lacking = [rules.get(word) or word.decode() for word in reply]
    return list(dict.fromkeys([*lacking, *await _outside(transport, layout, topic, rules[b"&2"], left)]))


async def _outside(transport: Transport, layout: Layout, topic: bytes, rule: str, left: Left) -> Sequence[str]:
    """Return what is lacking of the rights that no script can try: those to subscribe and to run a script again."""
    commands, tried = [*([ASKING] if layout.clustered else []), KNOWN], topic + TRIED
    sharded = topic and layout.clustered and version_of(transport.facts()) >= SHARDED_SINCE
    if sharded:  # never carried out, with channels of two slots
        both = tried, next(one for one in _beside(topic) if keys.slot_of(one) != keys.slot_of(tried))
        commands += [pack(b"SSUBSCRIBE", *both), pack(b"SUNSUBSCRIBE", *both)]
    elif topic:  # each has one reply, as on all connections that follow channels of another library
        commands += [pack(b"SUBSCRIBE", tried), pack(b"UNSUBSCRIBE", tried)]
    replies = await transport.call_all(commands, within=left())
    lacking = [_lacked(reply, rule) for reply in replies if denied(reply)]
    return [right for right in lacking if right != rule] if sharded else lacking  # who may publish on it may follow it


def _beside(topic: bytes) -> Iterator[bytes]:
    """Yield channels like that of a lock, of two other slots, or of one."""
    tag, end, role = topic.partition(b"}")
    return (tag + end_of_tag + end + role for end_of_tag in (b"\xfe", b"\xff"))


def denied(reply: Any) -> bool:
    """Return whether a reply says that the user lacks a right.

    Raises:
        ReplyError: it is another error, which says nothing of rights.
    """
    if not isinstance(reply, ReplyError) or reply.code in ("NOSCRIPT", "CROSSSLOT"):
        return False
    if reply.code != "NOPERM":
        raise reply
    return True


def rule_of(channel: bytes, lock: bytes) -> str:
    """Return the access rule that grants a channel of a lock, and the same of all locks."""
    return f"&{channel.partition(lock)[0].decode().rstrip('{')}*"


def _lacked(reply: ReplyError, rule: str) -> str:
    """Return the rule that a denied command lacked; ``rule``: that of its channel."""
    command = re.search(r"'([\w|]+)' command", str(reply))
    return f"+{command[1]}" if command else rule


def unheard(where: str, lock: bytes, channel: bytes, reply: ReplyError) -> StoreUnavailable:
    """Return the error of a waiter that may not follow a channel of its lock."""
    return error(where, [_lacked(reply, rule_of(channel, lock))]) if reply.code == "NOPERM" else refused(where, reply)


def error(where: str, lacking: Sequence[str]) -> NotPermitted:
    """Return the error that names the rights."""
    which = f"the right{'s' if len(lacking) > 1 else ''} {' '.join(lacking)}" if lacking else "a right"
    return NotPermitted(f"Redis at {where}: its user lacks {which}; grant what is listed in {PAGE}")
