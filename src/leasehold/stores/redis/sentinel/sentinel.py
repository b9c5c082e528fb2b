"""The primary that the sentinels name.

Theory of operation
-------------------
All sentinels are asked at once, and the answer with the highest configuration epoch counts. Each failover raises the
epoch, so a sentinel that was cut off and still names an old primary is outvoted by any newer answer. Among equal epochs
the address with most answers counts. Sentinels that do not reply in time are left out; one reply is enough.

Each sentinel is asked twice, in one write. ``SENTINEL MASTER`` has the epoch, but not always its address: the sentinel
that leads a failover raises the epoch as it promotes a replica, and names the old primary there until the other
replicas follow, or its ``failover-timeout`` has passed. ``GET-MASTER-ADDR-BY-NAME`` names the new one from then on.

The client then subscribes to all sentinels that answered, for the message of the next failover. One is not enough: it
may be cut off together with the primary, and never learn of the failover, while the client reaches both sides. Each new
subscription is followed by the same question: the message may have come just before it. If one of these connections
ends, the next call asks all sentinels again. So it does if a message comes while they are asked: the replies may be
older. With subscriptions to fewer than a majority it asks again from time to time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from leasehold._runtimes.base import Runtime
from leasehold.errors import StoreRefused, StoreUnavailable, Unsupported
from leasehold.stores._common.answers import with_remedy
from leasehold.stores.redis.connection.base import (
    MakeTransport,
    NotPermitted,
    ReplyError,
    RetryableError,
    Transport,
    pack,
    refused,
)
from leasehold.stores.redis.connection.settings import Settings

ANSWER_WITHIN = 1.0
"""Seconds for a sentinel's reply, at most a third of the caller's time: the cost of a stalled sentinel."""

SILENT_AFTER = 0.5
"""Seconds: sentinels count as silent if they did not answer questions that gave them so much time together."""

LISTEN_AGAIN = 10.0
"""Seconds after which all are asked again if a majority, which decides on a failover, may have none that we hear."""

ADDRESS_RIGHT = "+sentinel|get-master-addr-by-name"
"""The right to ask a sentinel for the address of the primary. Clients serve without it; see `Answer.settled`."""

SWITCHED = b"+switch-master"
"""The channel on which sentinels announce a failover: name, old address, new address."""


@dataclass(frozen=True)
class SentinelSettings:
    """How to find a primary by its sentinels, and how to connect to it."""

    name: str | None  # the sentinels' name of it; None if it is the only one that they monitor
    sentinels: Sequence[Settings]  # how to reach each
    server: Settings  # how to connect to the primary; its address is not known yet

    @property
    def where(self) -> str:
        """The servers, for messages to people."""
        sentinels = ", ".join(sentinel.where for sentinel in self.sentinels)
        return f"the primary {self.name or ''} of the sentinels at {sentinels}".replace("  ", " ")


class UnknownPrimary(StoreRefused):
    """The sentinels monitor no primary of that name."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One sentinel's answer."""

    host: str
    port: int
    generation: int
    fields: Mapping[str, str]
    settled: bool = True  # whether the address is surely that of this epoch
    denied: bool = False  # whether the user lacks `ADDRESS_RIGHT`

    @property
    def named(self) -> tuple[str, int, int, bool]:
        """What it says of the primary: address, epoch, and whether they belong together."""
        return self.host, self.port, self.generation, self.settled


class Sentinels:
    """The sentinels of one client; they find the primary."""

    def __init__(
        self, runtime: Runtime, watched: SentinelSettings, make: MakeTransport, on_moved: Callable[[], None]
    ) -> None:
        self._runtime = runtime
        self._on_moved = on_moved
        self._watched = watched
        self._name = watched.name
        self._moved = False
        self.announced = False
        """Whether a sentinel has announced another primary, and none has answered since."""
        self._listened: list[Transport] = []
        self._ask_at = math.inf
        self._unanswered = 0.0
        self._transports = [
            make(runtime, each, SWITCHED, self._on_message, self._on_silence) for each in watched.sentinels
        ]

    @property
    def where(self) -> str:
        """The servers, for messages to people."""
        return self._watched.where

    async def primary(self, within: float) -> Settings:
        """Return how to reach the primary.

        Raises:
            StoreUnavailable: it cannot be resolved.
        """
        for transport in self._transports:
            if transport not in self._listened and transport.generation():  # it did not answer: it may be dead
                transport.hang_up()
        self._moved = False  # then: a message that comes from now on may be newer than the answers
        if self._ask_at < math.inf:
            self._ask_at = self._runtime.now() + LISTEN_AGAIN
        each = max(min(ANSWER_WITHIN, within / 3), 0.05)
        try:
            return await self._newest(each)
        except RetryableError:
            self._moved = True
            self._unanswered += each
            raise
        except BaseException:
            self._moved = True
            raise

    def silent(self) -> bool:
        """Return whether no sentinel has answered or announced anything for long enough.

        One caller with little time is not enough: it would decide for all others.
        """
        return self._unanswered >= SILENT_AFTER

    async def _newest(self, within: float) -> Settings:
        answers = await self.ask(within)
        found = [answer for answer in answers if isinstance(answer, Answer)]
        if not found:
            raise self._failure(answers)
        self._unanswered, self.announced = 0.0, self.announced and self._moved  # a message may have come meanwhile
        newest = max((answer.generation, answer.settled) for answer in found)
        addresses = Counter(
            (answer.host, answer.port) for answer in found if (answer.generation, answer.settled) == newest
        )
        (host, port), _ = addresses.most_common(1)[0]
        await self._listen(answers, within)
        return self._watched.server.at(host, port)

    async def ask(self, within: float) -> list[Answer | BaseException]:
        """Return the answer of each sentinel, or its failure."""
        return await self._runtime.gather(*[self._ask_one(transport, within) for transport in self._transports])

    async def replicas(self, within: float) -> list[tuple[str, int]]:
        """Return the replicas that one of the sentinels knows.

        Raises:
            StoreUnavailable: that sentinel does not reply.
        """
        transport = (self._listened or self._transports)[0]
        reply = await self._call(transport, within, b"REPLICAS", self._name or "")
        found = [_fields(each) for each in reply]
        return [(each["ip"], int(each["port"])) for each in found if "s_down" not in each.get("flags", "")]

    def moved(self) -> bool:
        """Return, without waiting, whether a message since the last `primary` may name another one."""
        for transport in self._listened:
            if transport.has_unread():  # blocking: most likely a message of a failover, and `hang_up` drops it
                self.announced = True
                transport.hang_up()
                self._on_silence()
        return self._moved or self.due()

    def due(self) -> bool:
        """Return whether all are asked again only because it is time: one caller does, and the others go on."""
        return not self._moved and self._ask_at < math.inf and self._runtime.now() >= self._ask_at

    async def close(self) -> None:
        for transport in self._transports:
            await transport.close()

    def after_fork(self) -> None:
        self._listened = []
        for transport in self._transports:
            transport.after_fork(SWITCHED)

    # --- inside ------------------------------------------------------------------------------------------------

    async def _ask_one(self, transport: Transport, within: float) -> Answer:
        name = self._name or await self._only_name(transport, within)
        commands = [_command(b"MASTER", name), _command(b"GET-MASTER-ADDR-BY-NAME", name)]
        state, address = await transport.call_all(commands, within=within)
        fields = _fields(self._checked(transport, state, name))
        generation = int(fields.get("config-epoch", 0))
        if isinstance(address, list):
            host, port = cast("list[bytes]", address)
            return Answer(host.decode(), int(port), generation, fields)
        settled = "failover_in_progress" not in fields.get("flags", "")  # without the right to ask for the address
        denied = isinstance(address, ReplyError) and address.code == "NOPERM"
        return Answer(fields["ip"], int(fields["port"]), generation, fields, settled, denied)

    async def _only_name(self, transport: Transport, within: float) -> str:
        names = sorted(_fields(each)["name"] for each in await self._call(transport, within, b"MASTERS"))
        if len(names) != 1:
            raise UnknownPrimary(
                f"the sentinel at {self._address(transport)} monitors {', '.join(names) or 'nothing'}; choose one "
                "with redis+sentinel://HOST:PORT/NAME, or by a client made with master_for(NAME)"
            )
        self._name = names[0]
        return names[0]

    async def _call(self, transport: Transport, within: float, command: bytes, *names: str) -> Any:
        return self._checked(transport, await transport.call(_command(command, *names), within=within), *names)

    def _checked(self, transport: Transport, reply: Any, *names: str) -> Any:
        if isinstance(reply, ReplyError):
            where = self._address(transport)
            if "No such master" in str(reply):
                raise UnknownPrimary(f"the sentinel at {where} knows no primary called {names[0]!r}; {CHECK_NAME}")
            raise refused(where, reply)
        return reply

    def _address(self, transport: Transport) -> str:
        return self._watched.sentinels[self._transports.index(transport)].where

    async def _listen(self, answers: Sequence[Answer | BaseException], within: float) -> None:
        """Subscribe to all sentinels that answered, also to those that still name another."""
        answered = [
            (transport, answer)
            for transport, answer in zip(self._transports, answers, strict=True)
            if isinstance(answer, Answer)
        ]
        work = [self._subscribe(*each, within) for each in answered if not each[0].generation()]
        for failure in await self._runtime.gather(*work):
            if failure is not None:
                raise failure
        self._listened = [transport for transport, _ in answered if transport.generation()]
        few = 2 * len(self._listened) <= len(self._transports)
        self._ask_at = self._runtime.now() + LISTEN_AGAIN if few else math.inf

    async def _subscribe(self, transport: Transport, before: Answer, within: float) -> None:
        """Subscribe to a sentinel, if it lets us, and ask it again: its last message may have come before that."""
        try:
            await transport.listen(within)
        except StoreUnavailable:
            return
        try:
            answer = await self._ask_one(transport, within)
        except StoreUnavailable:
            self._moved = True
        else:
            self._moved = self._moved or answer.named != before.named

    def _on_message(self, message: bytes) -> None:
        name = message.partition(b" ")[0].decode("utf-8", "replace")
        if name == self._name:
            self._moved, self._unanswered, self.announced = True, 0.0, True
            self._on_moved()

    def _on_silence(self) -> None:
        self._moved, self._unanswered = True, 0.0  # the connection of one has ended: the next call asks all again

    def _failure(self, answers: Sequence[Answer | BaseException]) -> Exception:
        """Return the reason why no sentinel answered: a mistake that no retry cures comes first."""
        for kind in (Unsupported, UnknownPrimary, NotPermitted):
            for answer in answers:
                if isinstance(answer, kind):
                    return answer
        reasons = "; ".join(dict.fromkeys(str(answer) for answer in answers))
        text = f"no sentinel names the primary: {reasons}"
        refusals = [
            each for each in answers if isinstance(each, StoreUnavailable) and not isinstance(each, RetryableError)
        ]
        if any(not refusal.unknown for refusal in refusals):
            return StoreUnavailable(with_remedy(text, CHECK_SECRET))
        return RetryableError(text)


CHECK_NAME = "check the name at the end of the URL, redis+sentinel://HOST:PORT/NAME, against SENTINEL MASTERS"

CHECK_SECRET = (
    "sentinels have passwords of their own: write them into the URL as ?sentinel_password=SECRET, and if they have "
    "users &sentinel_username=NAME"
)


def _command(command: bytes, *names: str) -> bytes:
    return pack(b"SENTINEL", command, *map(str.encode, names))


def _fields(reply: Any) -> dict[str, str]:
    """Return names and values, read from a map (RESP3) or a list."""
    if isinstance(reply, dict):
        found = cast("dict[bytes, bytes]", reply)
    else:
        words = cast("list[bytes]", reply)
        found = dict(zip(words[::2], words[1::2], strict=True))
    return {name.decode(): value.decode("utf-8", "replace") for name, value in found.items()}
