"""A Redlock that other programs share: on each node the plain key has the vote, as redsync and others use it.

Theory of operation
-------------------
See `leasehold.stores.redis.redlock.store` for the protocol; all of it holds among our clients. On a node each script
first makes our own vote agree with the plain key, then works on that vote, and then writes the plain key. So:

* The key of another program is a vote for a stranger, with the id that this program has on all nodes. A majority of the
  same id counts as taken. A minority of it splits the votes: we give ours back, and retry after a random time.
* A vote of ours is a key that other programs find taken. A retreat, a release and a late release delete it, if its
  value is still the ticket. A claim that arrives after its release finds a higher token, and gets no vote.
* Another program that deletes our key on a node has taken our vote there. With a majority of them our next renewal
  finds it, and the holder is notified.

The others know no tokens, publish nothing, and keep to no quarantine. So one waiter of each client looks ten times a
second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha1
from importlib.resources import files

from leasehold._model import Finding
from leasehold._runtimes.base import Runtime
from leasehold.layouts.redis import doctor, rights, scripts
from leasehold.layouts.redis.plain import POLL, WHY_NOT
from leasehold.stores._common.names import before
from leasehold.stores.redis import keys
from leasehold.stores.redis.connection.base import ReplyError, pack
from leasehold.stores.redis.doctor import foreign
from leasehold.stores.redis.redlock.node import Member, Node
from leasehold.stores.redis.redlock.store import RedlockStore
from leasehold.stores.redis.scripts import (
    REDLOCK_CLAIM,
    REDLOCK_INSPECT,
    REDLOCK_RELEASE,
    REDLOCK_RENEW,
    REDLOCK_RENEW_WAITERS,
    Script,
)
from leasehold.stores.redis.scripts.commands import Command

SUFFIX = b"-plain"
"""What our keys of a name have at their end: they are not those of a Redlock of our own."""


def _script(step: str, *before: str, calls: Script | None = None) -> Script:
    folder = files(scripts.__name__)
    texts = [folder.joinpath(f"{part}.lua").read_text(encoding="utf-8") for part in (*before, f"plain_vote_{step}")]
    if calls is not None:
        texts.insert(0, f"local function step(KEYS, ARGV)\n{calls.text.decode()}\nend")
    text = "\n".join(texts).encode()
    return Script(f"plain_vote_{step}", text, sha1(text, usedforsecurity=False).hexdigest().encode())


RENEW = _script("renew")

SCRIPTS: Mapping[Script, Script] = {
    REDLOCK_CLAIM: _script("claim", "plain_votes", calls=REDLOCK_CLAIM),
    REDLOCK_RELEASE: _script("release", "plain_votes", calls=REDLOCK_RELEASE),
    REDLOCK_RENEW_WAITERS: _script("renew_waiters", "plain_votes", calls=REDLOCK_RENEW_WAITERS),
    REDLOCK_INSPECT: _script("inspect", "plain_votes", calls=REDLOCK_INSPECT),
    REDLOCK_RENEW: RENEW,
}
"""What a node runs instead of the script on a vote of our own."""


class PlainRedlockStore(RedlockStore):
    """See `leasehold.store_api.Store` for what each method promises."""

    capabilities = replace(RedlockStore.capabilities, lock_delay=False, why_not=WHY_NOT)
    role = f"vote{SUFFIX.decode()}"
    poll = POLL

    def __init__(self, runtime: Runtime, members: Sequence[Member], namespace: str, prefix: str) -> None:
        self._before = prefix + before(namespace)
        super().__init__(runtime, members, namespace)

    async def diagnose(self) -> list[Finding]:
        found = [one for one in await super().diagnose() if not one.subject.endswith(foreign.SUBJECT)]  # of each node
        return [*found, doctor.of_layout("plain", "redsync, node-redlock, redlock-py")]

    async def _check_more(self, node: Node, within: float) -> None:
        key = keys.probe_keys(node.channel)[0]  # not a key of another program: the user's rights to names are unknown
        tried = {
            "+get": pack(b"GET", key),
            "+set": pack(b"SET", key, b"", b"XX"),  # there is none, so it stays away
            "+del": pack(b"DEL", key),
        }
        replies = await node.transport.call_all([*tried.values()], within=within)
        pairs = zip(tried, replies, strict=True)
        lacking = [right for right, reply in pairs if isinstance(reply, ReplyError) and reply.code == "NOPERM"]
        if lacking:
            raise rights.error(node.where, lacking)

    def _at_node(self, command: Command) -> Command:
        script, those, args = command
        if script is not REDLOCK_RENEW:
            return SCRIPTS[script], (*(key + SUFFIX for key in those), self._plain(those[0])), args
        pairs = zip(those[::2], those[1::2], strict=True)
        each = [key for vote, token in pairs for key in (vote + SUFFIX, token + SUFFIX, self._plain(vote))]
        return RENEW, each, args

    def _plain(self, vote: bytes) -> bytes:
        return (self._before + keys.name_of(vote)).encode()

    def __repr__(self) -> str:
        return f"<PlainRedlockStore {self._quorum.where} namespace={self._namespace!r}>"
