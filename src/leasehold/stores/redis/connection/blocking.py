"""The blocking wire: a connection for each call under way, and one for the client's channel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis

from leasehold._runtimes.base import Colour, Runtime
from leasehold.errors import StoreUnavailable
from leasehold.stores.redis.connection.base import (
    HELLO,
    Ear,
    HungUp,
    OnMessage,
    OnSilence,
    ReplyError,
    no_answer,
    refused,
    subscriptions,
    version_of,
)
from leasehold.stores.redis.connection.channel import Channel
from leasehold.stores.redis.connection.connection import SILENT, Line
from leasehold.stores.redis.connection.settings import Settings, check_handshake, connect_error

IDLE_CONNECTIONS = 32
"""Connections kept open for later calls; more than these are closed after use."""


class BlockingWire:
    """See `leasehold.stores.redis.connection.base.Wire`."""

    def __init__(
        self, runtime: Runtime, settings: Settings, channel: bytes, on_message: OnMessage, on_silence: OnSilence
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._idle: list[Line] = []
        self._closed = False
        self._facts: dict[str, str] = {}
        self._ears = Channel(runtime, self.subscribed, settings.where, channel, on_message, on_silence)

    async def call(self, command: bytes, *, within: float) -> Any:
        line = self._fresh() or self.connect(within)
        try:
            answer = line.ask(command, within)
        except BaseException as error:
            self._broke(line, error)
            raise
        self._put_back(line)
        return answer

    async def call_all(self, commands: Sequence[bytes], *, within: float) -> list[Any]:
        line = self._fresh() or self.connect(within)
        try:
            answers = line.exchange(b"".join(commands), len(commands), within)
        except BaseException as error:
            self._broke(line, error)
            raise
        self._put_back(line)
        return answers

    async def listen(self, within: float) -> int:
        return self._ears.open(within)

    def epoch(self) -> int:
        return self._ears.epoch

    async def hear(self, ear: Ear, timeout: float) -> None:
        await self._ears.hear(ear, timeout)

    def nudge(self, ear: Ear) -> None:
        self._ears.nudge(ear)

    def disturbed(self) -> bool:
        return self._ears.disturbed()

    def hang_up(self) -> None:
        self._drop_idle()
        self._ears.hang_up()

    def retune(self, channel: bytes) -> None:
        self._ears.channel = channel

    def facts(self) -> dict[str, str]:
        return self._facts

    @property
    def where(self) -> str:
        """The server, for messages to people."""
        return self._settings.where

    async def close(self) -> None:
        self._closed = True
        self._drop_idle()
        self._ears.close()

    def after_fork(self, channel: bytes) -> None:
        self._idle = []  # dropped, not shut down: the parent goes on using the sockets
        self._closed = False
        self._ears.after_fork(channel)

    def connect(self, within: float) -> Line:
        """Open a connection and check who answers; once more if it hangs up before that.

        Raises:
            StoreUnavailable: nobody does, or nobody that can be used; nothing was sent.
        """
        until = self._runtime.now() + within
        try:
            return self._connect(within)
        except HungUp:
            left = until - self._runtime.now()
            if left <= 0:
                raise
        return self._connect(left)

    def _connect(self, within: float) -> Line:
        connection, until = self._settings.connection(Colour.BLOCKING, within), self._runtime.now() + within
        where = self._settings.where
        if self._closed:
            raise no_answer(where, "the client is closed", unknown=False)
        failed: Exception | None = None
        try:
            connection.connect()
        except (redis.RedisError, OSError, ValueError) as error:
            failed = connect_error(error, where)
        if failed is not None:
            raise failed  # out here it has no context: local variables in the frames of redis-py show the password
        line = Line(connection, self._runtime)
        try:
            said = line.ask(HELLO, max(until - self._runtime.now(), 0.001))
            self._facts = check_handshake(said, self._settings)
        except BaseException as error:
            line.close()
            if isinstance(error, StoreUnavailable) or not isinstance(error, SILENT):
                raise
            gone = no_answer(where, error, unknown=False)
            raise gone if isinstance(error, TimeoutError) else HungUp(str(gone)) from error
        return line

    def subscribed(self, channel: bytes, within: float) -> Line:
        """Open a connection that hears ``channel``."""
        line, where = self.connect(within), self._settings.where
        try:
            asked = subscriptions(channel, version_of(self._facts))
            for reply in line.exchange(b"".join(asked), len(asked), within):
                if isinstance(reply, ReplyError):
                    raise refused(where, reply)
        except BaseException as error:
            line.close()
            if isinstance(error, SILENT) and not isinstance(error, StoreUnavailable):
                raise no_answer(where, error, unknown=False) from error
            raise
        return line

    def _broke(self, line: Line, error: BaseException) -> None:
        """Close a line on which a reply may still be on its way: nobody must ever read it as an answer of theirs."""
        line.close()
        if isinstance(error, SILENT):
            self._drop_idle()  # they go to the same server, and each would cost another attempt
            raise no_answer(self._settings.where, error, unknown=True) from error

    def _put_back(self, line: Line) -> None:
        if len(self._idle) < IDLE_CONNECTIONS and not self._closed:
            self._idle.append(line)
        else:
            line.close()
        if self._closed:
            self._drop_idle()  # it may have been closed just before this line was put back

    def _fresh(self) -> Line | None:
        """Take an idle connection that the server has not closed meanwhile; None if there is none."""
        while True:
            try:
                line = self._idle.pop()
            except IndexError:
                return None
            if line.usable():
                return line
            line.close()

    def _drop_idle(self) -> None:
        idle = self._idle
        while idle:
            try:
                line = idle.pop()  # taken out before it is closed: another thread may be taking one just now
            except IndexError:  # it was the last
                return
            line.close()
