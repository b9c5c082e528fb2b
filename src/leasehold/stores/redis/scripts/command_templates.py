"""The bytes of claims and leaves of mutexes: made once for each name, but for the ticket's id.

Of what an acquire and a release send, only the ticket's 22 characters are new. Packing all the rest each time took as
long as the system calls that send it.
"""

from __future__ import annotations

from dataclasses import dataclass

from leasehold._model import LeaseTerms, ReleaseReason, Ticket
from leasehold.stores.redis import keys
from leasehold.stores.redis.connection.base import bulk
from leasehold.stores.redis.scripts import CLAIM, LEAVE
from leasehold.stores.redis.scripts.commands import mutex_words

MOST = 2048
"""Names whose forms are kept; then all are made anew."""

CLAIM_HEAD = CLAIM.head(4 + 8)
LEAVE_HEAD = LEAVE.head(4 + 2)

RELEASED, BROKEN = bulk(b"0"), bulk(b"1")


@dataclass(frozen=True, slots=True)
class Arguments:
    """What stands behind the ticket in a claim, and what it was made from."""

    terms: LeaseTerms
    join: bool
    channel: bytes
    packed: bytes

    def fits(self, terms: LeaseTerms, join: bool, channel: bytes) -> bool:
        """Say whether it is the one for these."""
        return (
            (terms is self.terms or terms == self.terms)  # most often the very same object: the lock is used again
            and join is self.join
            and channel == self.channel
        )


class CommandTemplates:
    """Those of one namespace. Used from many threads at once; two may make the same form, which harms nobody."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._templates: dict[str, tuple[bytes, Arguments]] = {}  # keys, and the tail of the last claim
        self._arguments: Arguments | None = None  # the last that was made: most names are claimed on the same terms

    def try_acquire(self, name: str, ticket: Ticket, *, join: bool, channel: bytes) -> bytes:
        """Return the packed command that claims."""
        form = self._templates.get(name)
        if form is None or not form[1].fits(ticket.terms, join, channel):
            form = self._made(name, ticket.terms, join, channel)
        those, arguments = form
        return b"%b%b$%d\r\n%b\r\n%b" % (CLAIM_HEAD, those, len(ticket.id), ticket.id.encode(), arguments.packed)

    def release(self, name: str, ticket: Ticket, reason: ReleaseReason) -> bytes:
        """Return the packed command that leaves."""
        form = self._templates.get(name)
        those = self._keys(name) if form is None else form[0]
        arguments = BROKEN if reason is ReleaseReason.BREAK else RELEASED
        return b"%b%b$%d\r\n%b\r\n%b" % (LEAVE_HEAD, those, len(ticket.id), ticket.id.encode(), arguments)

    def _made(self, name: str, terms: LeaseTerms, join: bool, channel: bytes) -> tuple[bytes, Arguments]:
        arguments = self._arguments
        if arguments is None or not arguments.fits(terms, join, channel):
            packed = b"".join(map(bulk, mutex_words(terms, join=join, channel=channel)))
            self._arguments = arguments = Arguments(terms, join, channel, packed)
        known = self._templates.get(name)
        if len(self._templates) >= MOST:
            self._templates = {}
        form = self._templates[name] = (self._keys(name) if known is None else known[0], arguments)
        return form

    def _keys(self, name: str) -> bytes:
        return bulk(b"4") + b"".join(map(bulk, keys.mutex_keys(self._namespace, name)))
