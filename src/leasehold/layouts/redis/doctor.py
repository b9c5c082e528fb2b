"""The findings of `leasehold doctor` about a layout on a Redis server."""

from __future__ import annotations

from collections.abc import Sequence

from leasehold._model import Finding, LeaseTerms, LockMode, Owner, Severity, Ticket
from leasehold.layouts.redis import rights
from leasehold.layouts.redis.layout import Layout
from leasehold.stores.redis.connection.base import ReplyError, Transport, pack
from leasehold.stores.redis.doctor import foreign
from leasehold.stores.redis.doctor import layout as keys_layout
from leasehold.stores.redis.doctor.checks import Facts, access

WITHIN = 5.0
"""Seconds for all of the server's replies."""

NAME = "rights"
"""A name whose channels are tried, but none of its keys: which names the user may lock is unknown."""

MEANS = "tokens count our holds only, and the other programs are not notified of a lost lease"


def of_layout(name: str, of: str) -> Finding:
    """Return what is true of every layout, by its name and the libraries that have it."""
    return Finding(Severity.NOTE, "layout", f"{name}: locks are shared with {of}", MEANS, "see docs/interop.md")


async def adjusted(
    found: Sequence[Finding], transport: Transport, layout: Layout, namespace: str, channel: bytes, left: rights.Left
) -> list[Finding]:
    """Return the findings on a server, with those on a layout instead of those on a format of our own.

    Raises:
        StoreUnavailable: no answer.
    """
    kept = [one for one in found if one.subject not in ("rights", foreign.SUBJECT, keys_layout.SUBJECT)]
    try:
        lacking = list[str]()
        for kind in layout.kinds:
            ticket = Ticket("A" * 22, LeaseTerms(LockMode(kind), Owner("", 0, ""), 0.0))
            lacking += await rights.missing(transport, layout, namespace, NAME, ticket, channel, left, locks=False)
        if rights.denied(await transport.call(pack(b"SCAN", b"0", b"COUNT", b"1"), within=left())):
            lacking.append("+scan")
        facts = Facts("", {}, None, {}, lacking=list(dict.fromkeys(lacking)))
        kept.append(access(facts))
    except ReplyError:
        pass  # as of a cluster's node without that name: not known
    return [*kept, of_layout(layout.name, layout.of)]
