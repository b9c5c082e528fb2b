"""One node of a Redlock: its transport, whether it answers, and how long it is skipped when it does not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from leasehold._model import Finding
from leasehold._runtimes.base import Runtime
from leasehold.errors import LeaseholdError, StoreUnavailable, Unsupported
from leasehold.stores._common.slots import Slot
from leasehold.stores.redis.connection.base import (
    DEMOTED,
    OnMessage,
    OnSilence,
    ReplyError,
    Transport,
    info_fields,
    pack,
    refused,
)
from leasehold.stores.redis.connection.pipelining import PipelinedConnection, Pipelining
from leasehold.stores.redis.connection.replies import OnReply
from leasehold.stores.redis.connection.settings import Settings
from leasehold.stores.redis.connection.transports import single_transport
from leasehold.stores.redis.rights import check_rights
from leasehold.stores.redis.scripts.calls import run_all
from leasehold.stores.redis.scripts.commands import Command
from leasehold.stores.redis.sentinel.primary_tracking import PrimaryTransport
from leasehold.stores.redis.sentinel.sentinel import Sentinels, SentinelSettings
from leasehold.stores.redis.sentinel.store import SentinelStore


class Member(Protocol):
    """What a node is reached by. If it fails over, another server may take its place, without the last votes."""

    @property
    def settings(self) -> Settings: ...

    @property
    def fails_over(self) -> bool: ...

    def transport(
        self, runtime: Runtime, channel: bytes, on_message: OnMessage, on_silence: OnSilence
    ) -> Transport: ...

    async def diagnose(
        self, runtime: Runtime, transport: Transport, namespace: str, channel: bytes
    ) -> list[Finding]: ...


@dataclass(frozen=True)
class Single:
    """One server."""

    settings: Settings
    fails_over: bool = False

    def transport(self, runtime: Runtime, channel: bytes, on_message: OnMessage, on_silence: OnSilence) -> Transport:
        return single_transport(runtime)(runtime, self.settings, channel, on_message, on_silence)

    async def diagnose(self, runtime: Runtime, transport: Transport, namespace: str, channel: bytes) -> list[Finding]:
        from leasehold.stores.redis.doctor import doctor

        return await doctor.diagnose(runtime, transport, self.settings, namespace, channel)


@dataclass(frozen=True)
class TrackedPrimary:
    """The primary that sentinels name."""

    watched: SentinelSettings
    fails_over: bool = True

    @property
    def settings(self) -> Settings:
        return replace(self.watched.server, where=self.watched.where)

    def transport(self, runtime: Runtime, channel: bytes, on_message: OnMessage, on_silence: OnSilence) -> Transport:
        make = single_transport(runtime)
        sentinels = Sentinels(runtime, self.watched, make, on_silence)
        return PrimaryTransport(runtime, sentinels, make, channel, on_message, on_silence)

    async def diagnose(self, runtime: Runtime, transport: Transport, namespace: str, channel: bytes) -> list[Finding]:
        store = SentinelStore(runtime, self.watched, namespace)
        try:
            return await store.diagnose()
        finally:
            await store.close()


STUCK = 0.25
"""Seconds after which a node with an open request gets no new one until it has answered."""

OVERDUE = 1.0
"""Seconds beyond its time after which a request no longer counts as open.

By then its end was recorded, unless an exception, as of a signal handler, came between the answer and the record.
"""

LONGEST = 10.0
"""Seconds for which a request of the background counts as open, at most."""

FIRST_SKIP = 0.1
"""Seconds for which a node that did not answer is skipped; twice as long each further time, with jitter."""

LONGEST_SKIP = 2.0
"""Seconds after which a node that is back is asked again, at most."""


class Node:
    """One node. Thread-safe."""

    def __init__(
        self,
        runtime: Runtime,
        index: int,
        member: Member,
        namespace: str,
        channel: bytes,
        on_message: Callable[[Node, bytes], None],
        on_silence: Callable[[], None],
        on_identity: Callable[[], None],
        *,
        quarantine: bool = False,
        check_more: Callable[[Node, float], Awaitable[None]] | None = None,
    ) -> None:
        self._runtime = runtime
        self._quarantine = quarantine
        self._check_more = check_more
        self._namespace = namespace
        self.channel = channel
        self._on_identity = on_identity
        self.index = index
        self.member = member
        self.settings = member.settings
        self.subscriber = Slot("", "")

        def silent() -> None:
            self.wake_listener()
            on_silence()

        self.transport = member.transport(runtime, channel, partial(on_message, self), silent)
        self._pipelining = self.transport if isinstance(self.transport, Pipelining) else None
        self._reset()

    def _reset(self) -> None:
        self.identity: str | None = None  # its run id, once it is known
        self._open_requests: dict[object, tuple[float, float]] = {}  # when each began, and until when it has time
        self._last_reply = 0.0  # boot-time clock of its last answer
        self._skip_for = 0.0
        self._skipped_until = 0.0
        self._failed: LeaseholdError | None = None

    @property
    def where(self) -> str:
        return self.settings.where

    def is_skipped(self, now: float) -> bool:
        """Return whether it gets no requests now: it did not answer lately, or an answer is open for too long."""
        if now < self._skipped_until:
            return True
        while True:
            try:
                request, (began, until) = next(iter(self._open_requests.items()), (None, (now, now)))
            except RuntimeError:  # another thread changes the requests just now, so the node is not stuck
                return False
            if now - began <= STUCK or now <= until + OVERDUE:
                return now - began > STUCK
            self._open_requests.pop(request, None)

    def why_skipped(self, now: float) -> StoreUnavailable:
        """Return the reason why it was skipped."""
        if now < self._skipped_until and self._failed is not None:
            return StoreUnavailable(f"{self._failed}; it is asked again in {self._skipped_until - now:.1f} s")
        return StoreUnavailable("it has not answered an earlier request yet", unknown=False)

    def read(self, now: float) -> bool:
        """Read late answers; return whether more are open."""
        return self._pipelining is not None and self._pipelining.read(now)

    def catch_up(self, now: float) -> bool:
        """Read late answers; return whether the node need not be skipped after that."""
        if now < self._skipped_until:
            return False
        self.read(now)
        return not self.is_skipped(now)

    @property
    def can_send(self) -> bool:
        """Whether requests can be sent without waiting: its identity is known."""
        return self._pipelining is not None and self.identity is not None

    def post(
        self, packed: bytes, now: float, until: float, answered: OnReply, taken: list[PipelinedConnection]
    ) -> bool:
        """Send a script's packed call without waiting, if that can be done at once; see `Pipelining.post`.

        The callback ``answered`` reports the answer, or that there is none, to `end_request`.
        """
        if self._pipelining is None:
            return False
        self._open_requests[answered] = now, until
        posted = False
        try:
            posted = self._pipelining.post(packed, until, answered, taken)
        finally:
            if not posted:
                self._open_requests.pop(answered, None)
        return posted

    async def connect(self, within: float) -> None:
        """Open one more connection to send on without waiting. No caller waits for it."""
        if self.can_send and self._pipelining is not None and not self.is_skipped(self._runtime.now()):
            try:
                self._pipelining.add(within)
            except (StoreUnavailable, Unsupported):  # the next request reports it
                pass

    def open_request(self) -> OpenRequest:
        now = self._runtime.now()
        request = OpenRequest(self, now)
        self._open_requests[request] = now, now + LONGEST
        return request

    def end_request(self, request: object, failure: LeaseholdError | None, began: float = 0.0) -> None:
        """Record its answer, or a failure, after which the node is skipped for a while. An error reply is an answer.

        ``began``: when it began, for one that may no longer count as open.
        """
        (began, _), now = self._open_requests.pop(request, (began, 0.0)), self._runtime.now()
        if failure is None:
            self._last_reply = now
            self._skip_for = 0.0
        elif self._last_reply <= began:
            self._failed = failure
            if now >= self._skipped_until:
                self._skip_for = min(2 * self._skip_for or FIRST_SKIP, LONGEST_SKIP)
                self._skipped_until = now + self._skip_for * (0.5 + self._runtime.jitter() / 2)

    async def ask_all(self, commands: Sequence[Command], within: float) -> list[Any]:
        """Run scripts as `run_all` does, but return each error reply as the exception for it."""
        replies = await self.run_all(commands, within)
        for index, reply in enumerate(replies):
            if isinstance(reply, ReplyError):
                replies[index] = await self._refusal(reply, within)
        return replies

    async def _refusal(self, reply: ReplyError, within: float) -> LeaseholdError:
        try:
            if reply.code == "NOPERM":
                await self._check_rights(within)
        except (StoreUnavailable, Unsupported) as error:
            return error
        return refused(self.where, reply)

    async def run_all(self, commands: Sequence[Command], within: float) -> list[Any]:
        """Run scripts in one write; return their replies, of which some may be errors.

        Raises:
            StoreUnavailable: no answer.
        """
        until = self._runtime.now() + within
        if self.identity is None:
            await self.meet(within)
        replies = await run_all(self.transport, commands, max(until - self._runtime.now(), 0.001))
        self._last_reply = self._runtime.now()
        if any(isinstance(reply, ReplyError) and reply.code in DEMOTED for reply in replies):
            self.transport.hang_up()
        return replies

    async def meet(self, within: float) -> None:
        """Find out, once, its identity, and whether the user has the rights that are needed."""
        reply = await self.transport.call(pack(b"INFO", b"server"), within=within)
        identity = "" if isinstance(reply, ReplyError) else info_fields(reply).get("run_id", "")
        if self.settings.restricted:
            await self._check_rights(within)
        self.identity = identity
        self._on_identity()

    async def _check_rights(self, within: float) -> None:
        await check_rights(
            self.transport, self.where, self._namespace, self.channel, within=within, info=self._quarantine
        )
        if self._check_more is not None:
            await self._check_more(self, within)

    def wake_listener(self) -> None:
        """Let the thread or task that listens to it subscribe again."""
        self.subscriber.news = True
        self.transport.notify(self.subscriber)

    async def close(self) -> None:
        self.wake_listener()
        await self.transport.close()

    def after_fork(self, channel: bytes) -> None:
        self.channel = channel
        self.subscriber = Slot("", "")
        self._reset()
        self.transport.after_fork(self.channel)


class OpenRequest:
    """A request that its sender waits for.

    As a context it records at the node that it was answered, or why not. That reason is in ``failure``, too, and is not
    raised.
    """

    def __init__(self, node: Node, began: float) -> None:
        self._node = node
        self._began = began
        self.failure: LeaseholdError | None = None

    def __enter__(self) -> OpenRequest:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> bool:
        if isinstance(error, StoreUnavailable | Unsupported):
            self.failure = error
        elif error is not None:
            self.failure = StoreUnavailable(f"the request to {self._node.where} was interrupted", unknown=True)
        self._node.end_request(self, self.failure, self._began)
        return error is self.failure
