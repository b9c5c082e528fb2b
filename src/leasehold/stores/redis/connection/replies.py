"""The replies and messages of one connection to Redis (RESP3), without I/O: its owner sends, receives, keeps the time.

The server replies in order, so the oldest pending command takes the next reply. A command whose caller has given up
keeps its position in that order, and its reply is discarded. So a reply never reaches another caller. Messages come
between the replies.

The connections of both flavors are this and a socket: `Connection` blocks, `AioConnection` is an `asyncio.Protocol`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import hiredis

from leasehold.errors import StoreUnavailable
from leasehold.stores.redis.connection.base import OnMessage, ReplyError, no_answer

OnReply = Callable[[Any, StoreUnavailable | None], None]
"""Called once with the reply, which may be a `ReplyError`, or with the reason why none comes. It must not block."""

PendingReply = tuple[OnReply, float, float]
"""The callback of a reply, the time after which the reply counts as lost, and that after which the connection does."""

MESSAGES = (b"message", b"smessage")
SUBSCRIBED = (b"subscribe", b"ssubscribe")

TOO_SLOW = "it answered too slowly"
GONE = "it closed the connection"


class Replies:
    """The replies to the commands that were sent, and the messages of the subscription."""

    def __init__(self, where: str, on_message: OnMessage) -> None:
        self.where = where  # the server, for messages to people
        self.open = True  # whether replies may still come
        self.pending: deque[PendingReply] = deque()  # the commands that have no reply yet, oldest first
        self._on_message = on_message
        self._reader = hiredis.Reader(replyError=ReplyError, protocolError=hiredis.ProtocolError)

    def data_received(self, data: bytes) -> None:
        """Match the replies in ``data`` to commands, in order, and pass messages on."""
        reader, pending = self._reader, self.pending
        reader.feed(data)
        try:
            while (reply := reader.gets()) is not False:
                if isinstance(reply, hiredis.PushNotification) and not self._confirms(reply):
                    continue
                if not pending:
                    self.end("it sent a reply without a command")
                    return
                pending.popleft()[0](reply, None)
        except hiredis.ProtocolError as error:
            self.end(error)

    def end(self, why: object) -> None:
        """Report to all pending commands that no reply will come."""
        self.open = False
        while self.pending:
            self.pending.popleft()[0](None, no_answer(self.where, why, unknown=True))

    def _confirms(self, push: list[Any]) -> bool:
        """Take a push; return whether it is the reply to a subscription. RESP3 sends that in the order of replies."""
        if push[0] in MESSAGES:
            self._on_message(push[2])
        elif push[0] == b"sunsubscribe":
            self._unsubscribed()
        return push[0] in SUBSCRIBED

    def _unsubscribed(self) -> None:
        """The slot of the channel has moved to another node."""
        self.end("the slot of its channel has moved")
