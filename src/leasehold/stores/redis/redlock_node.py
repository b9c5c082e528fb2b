"""One node of a Redlock: its wire, whether it answers, and how long it is left alone when it does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from leasehold.errors import LeaseholdError, StoreUnavailable, Unsupported
from leasehold.model import Finding
from leasehold.runtimes.base import Runtime, Signal
from leasehold.stores.redis import keys, rights
from leasehold.stores.redis.commands import Command
from leasehold.stores.redis.redlock_members import Member
from leasehold.wires.redis.base import DEMOTED, ReplyError, pack, refused

STUCK = 0.25
"""Seconds after which a node that owes an answer is asked nothing new until it has given it."""

WITHIN = 5.0
"""Seconds that a node may take to say who it is, when somebody looks at it."""

FIRST_REST = 0.1
"""Seconds for which a node is left alone that did not answer; each further rest is twice as long, with jitter."""

LONGEST_REST = 2.0
"""Seconds: a node that is back is asked again at most so much later."""


class Ear:
    """Who listens for all waiters of this client at one node."""

    def __init__(self) -> None:
        self.news = False
        self._signal: Signal | None = None

    def ready(self, runtime: Runtime) -> Signal:
        """Return the signal to wait for."""
        if self._signal is None:
            self._signal = runtime.signal()
        return self._signal

    def ring(self) -> None:
        """Wake who waits."""
        if self._signal is not None:
            self._signal.set()

    def rest(self) -> None:
        """Take the news."""
        self.news = False
        if self._signal is not None:
            self._signal.clear()


class Node:
    """One node. Used from many threads at once."""

    def __init__(
        self,
        runtime: Runtime,
        index: int,
        member: Member,
        namespace: str,
        channel: bytes,
        heard: Callable[[Node, bytes], None],
        silence: Callable[[Node], None],
        known: Callable[[Node], None],
    ) -> None:
        self._runtime = runtime
        self._namespace = namespace
        self.channel = member.channel(channel)
        self._known = known
        self.index = index
        self.member = member
        self.settings = member.settings
        self.ear = Ear()
        self.wire = member.wire(
            runtime, namespace, self.channel, lambda message: heard(self, message), lambda: silence(self)
        )
        self._forget()

    def _forget(self) -> None:
        self.identity: str | None = None  # its run id, once it told
        self._out: dict[object, float] = {}
        self._heard = 0.0  # when it last answered anything
        self._rest = 0.0
        self._rests_until = 0.0
        self._failed: LeaseholdError | None = None

    @property
    def where(self) -> str:
        """Its address, for messages to people."""
        return self.settings.where

    def memory(self, name: str) -> bytes:
        """Return the key in which the server that has ``name`` keeps what it remembers of its own votes."""
        return self.member.memory(self.wire, self._namespace, name)

    def rests(self, now: float) -> bool:
        """Say whether it is to be left alone."""
        if now < self._rests_until:
            return True
        try:
            oldest = next(iter(self._out.values()), now)
        except RuntimeError:  # another thread asks or is answered just now: it is not stuck
            return False
        return now - oldest > STUCK

    def why(self, now: float) -> StoreUnavailable:
        """Say why it was not asked."""
        if now < self._rests_until and self._failed is not None:
            return StoreUnavailable(f"{self._failed}; it is asked again in {self._rests_until - now:.1f} s")
        return StoreUnavailable("it has owed an answer for a while", unknown=False)

    def begins(self) -> object:
        """Take note of a question."""
        asked = object()
        self._out[asked] = self._runtime.now()
        return asked

    def ends(self, asked: object, failure: LeaseholdError | None) -> None:
        """Take note of its answer, or that none came, which means a rest. A refusal is an answer."""
        began = self._out.pop(asked, 0.0)
        if failure is None:
            self._rest = 0.0
            return
        if self._heard > began:
            return
        self._failed = failure
        now = self._runtime.now()
        if now >= self._rests_until:
            self._rest = min(2 * self._rest or FIRST_REST, LONGEST_REST)
            self._rests_until = now + self._rest * (0.5 + self._runtime.jitter() / 2)

    async def run(self, command: Command, within: float) -> Any:
        """Run one script and return its reply.

        Raises:
            StoreUnavailable: no answer, or a refusal.

        """
        (reply,) = await self.run_all([command], within)
        if isinstance(reply, ReplyError):
            if reply.code == "NOPERM":
                await rights.check(self.wire, self.where, self._namespace, self.channel, within=within)
            raise refused(self.where, reply)
        return reply

    async def names(self, prefix: str, within: float) -> list[str]:
        """Return the names beginning with ``prefix`` for which it has given a vote, or knows one to be kept free.

        Raises:
            StoreUnavailable: no answer, or a refusal.

        """
        found = dict[str, None]()
        pattern = keys.lock_pattern(self._namespace, prefix, "vote")
        for wire in await self.member.parts(self.wire, within):
            cursor = b""
            while cursor != b"0":
                scan = pack(b"SCAN", cursor or b"0", b"MATCH", pattern, b"COUNT", b"1000")
                reply = await wire.call(scan, within=within)
                if isinstance(reply, ReplyError):
                    raise refused(self.where, reply)
                cursor = reply[0]
                found.update(dict.fromkeys(map(keys.name_of, reply[1])))
        return list(found)

    async def run_all(self, commands: Sequence[Command], within: float) -> list[Any]:
        """Run scripts in one write; return their replies, of which some may be errors."""
        until = self._runtime.now() + within
        if self.identity is None:
            await self._meet(within)
        packed = [script.by_digest(keys, args) for script, keys, args in commands]
        replies = await self.wire.call_all(packed, within=max(until - self._runtime.now(), 0.001))
        self._heard = self._runtime.now()
        for index, reply in enumerate(replies):
            if isinstance(reply, ReplyError) and reply.code == "NOSCRIPT":
                script, keys, args = commands[index]
                left = max(until - self._runtime.now(), 0.001)
                replies[index] = await self.wire.call(script.by_text(keys, args), within=left)
        if any(isinstance(reply, ReplyError) and reply.code in DEMOTED for reply in replies):
            self.wire.hang_up()
        return replies

    async def _meet(self, within: float) -> None:
        """Learn, once, who it is, and whether we have the rights that we need."""
        identity = await self.member.identity(self.wire, within)
        if self.settings.restricted:
            await rights.check(self.wire, self.where, self._namespace, self.channel, within=within)
        self.identity = identity
        self._known(self)

    async def diagnose(self) -> list[Finding]:
        """Look at this node's settings."""
        if self.identity is None:
            try:
                await self._meet(WITHIN)
            except Unsupported:  # it is there twice, which the others say
                pass
        return await self.member.diagnose(self._runtime, self.wire, self._namespace, self.channel)

    async def close(self) -> None:
        """End its connections."""
        self.ear.news = True
        self.wire.nudge(self.ear)
        await self.wire.close()

    def after_fork(self, channel: bytes) -> None:
        """Start anew in a forked child, on a channel of its own."""
        self.channel = self.member.channel(channel)
        self.ear = Ear()
        self._forget()
        self.wire.after_fork(self.channel)


def refuse_twice(nodes: Sequence[Node]) -> None:
    """Raise if one server is there twice: it would count as two votes."""
    seen: dict[str, Node] = {}
    for node in nodes:
        if node.identity:
            other = seen.setdefault(node.identity, node)
            if other is not node:
                raise Unsupported(
                    f"{other.where} and {node.where} are the same server; each node of Redlock must be one of its own, "
                    "or one failure takes away two votes: name it once"
                )
