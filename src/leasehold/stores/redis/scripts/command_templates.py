"""The packed commands that acquire and release a mutex, kept for each name; only the ticket's id is filled in.

Of what an acquire and a release send, only the ticket's 22 characters are new. Packing the rest each time took as long
as the system calls that send it.
"""

from __future__ import annotations

from dataclasses import dataclass

from leasehold._model import LeaseTerms, ReleaseReason, Ticket
from leasehold.stores.redis import keys
from leasehold.stores.redis.connection.base import bulk
from leasehold.stores.redis.scripts import CLAIM, RELEASE
from leasehold.stores.redis.scripts.commands import mutex_args

MOST = 2048
"""Names whose templates are kept; above that, all are dropped and made anew."""

CLAIM_HEAD = CLAIM.head(4 + 8)
RELEASE_HEAD = RELEASE.head(4 + 2)

PLAIN_RELEASE = ReleaseReason.RELEASE
RELEASED, BROKEN = b"\r\n" + bulk(b"0"), b"\r\n" + bulk(b"1")


@dataclass(frozen=True, slots=True)
class Arguments:
    """The packed arguments after the ticket in a claim, and what they were made from."""

    terms: LeaseTerms | None
    join: bool
    channel: bytes
    packed: bytes

    def fits(self, terms: LeaseTerms, join: bool, channel: bytes) -> bool:
        """Return whether they are the arguments for these."""
        return (
            (terms is self.terms or terms == self.terms)  # most often the same object: the lock is used again
            and join is self.join
            and channel == self.channel
        )


Template = tuple[bytes, Arguments]
"""The packed keys of a name, and the arguments of its last claim."""

NONE: Template = (b"", Arguments(None, False, b"", b""))


class CommandTemplates:
    """The templates of one namespace.

    Used from many threads at once. Two threads may make the same template, which is harmless.
    """

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._templates: dict[str, Template] = {}
        self._arguments: Arguments | None = None  # the last: most names are acquired on the same terms

    def try_acquire(self, name: str, ticket: Ticket, join: bool, channel: bytes) -> bytes:
        """Return the packed command that acquires."""
        packed_keys, arguments = self._templates.get(name, NONE)
        if arguments.terms is not ticket.terms or arguments.join is not join or arguments.channel != channel:
            packed_keys, arguments = self._fitting(name, ticket.terms, join, channel)
        return CLAIM_HEAD + packed_keys + (b"$%d\r\n" % len(ticket.id)) + ticket.id.encode() + arguments.packed

    def release(self, name: str, ticket: Ticket, reason: ReleaseReason) -> bytes:
        """Return the packed command that releases."""
        template = self._templates.get(name)
        packed_keys = self._keys(name) if template is None else template[0]
        arguments = RELEASED if reason is PLAIN_RELEASE else BROKEN
        return RELEASE_HEAD + packed_keys + (b"$%d\r\n" % len(ticket.id)) + ticket.id.encode() + arguments

    def _fitting(self, name: str, terms: LeaseTerms, join: bool, channel: bytes) -> Template:
        template = self._templates.get(name)
        if template is not None and template[1].fits(terms, join, channel):
            return template
        arguments = self._arguments
        if arguments is None or not arguments.fits(terms, join, channel):
            packed = b"\r\n" + b"".join(map(bulk, mutex_args(terms, join=join, channel=channel)))
            self._arguments = arguments = Arguments(terms, join, channel, packed)
        if len(self._templates) >= MOST:
            self._templates = {}
        packed_keys = self._keys(name) if template is None else template[0]
        template = self._templates[name] = (packed_keys, arguments)
        return template

    def _keys(self, name: str) -> bytes:
        return bulk(b"4") + b"".join(map(bulk, keys.mutex_keys(self._namespace, name)))
