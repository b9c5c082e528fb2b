"""The channels of shards that waiters follow: which push of the server is a reply, and which tells that a slot left."""

from __future__ import annotations

import socket
import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from layout_keys import url_of

from leasehold._model import LeaseTerms, LockMode, Owner, ReleaseReason, Ticket, ticket_id
from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.layouts.redis.connection.topics import Topics
from leasehold.layouts.redis.connection.transports import AioTopicConnection, Flusher, TopicChannel, TopicConnection
from leasehold.stores.redis.connection.base import ReplyError
from leasehold.stores.redis.connection.connection import WakeUp
from leasehold.stores.redis.connection.replies import Replies
from support.flavors import both

A, B = b"lock:{a}", b"lock:{b}"

OK, MAP = b"+OK\r\n", b"%1\r\n+server\r\n+redis\r\n"
MOVED = b"-MOVED 7 10.0.0.1:6379\r\n"
DENIED = b"-NOPERM no\r\n"


def push(kind: bytes, channel: bytes, more: bytes = b":1\r\n") -> bytes:
    return b">3\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n%b" % (len(kind), kind, len(channel), channel, more)


def joined(channel: bytes) -> bytes:
    return push(b"ssubscribe", channel)


def left(channel: bytes) -> bytes:
    return push(b"sunsubscribe", channel)


def message(channel: bytes) -> bytes:
    return push(b"smessage", channel, b"$1\r\n0\r\n")


class Line(Replies):
    """A connection to a node, which also carries the client's other commands."""

    _confirms = AioTopicConnection._confirms

    def __init__(self, topics: Topics) -> None:
        super().__init__("there", lambda message: None)
        self.topics = topics
        self.sent = list[bytes]()
        self.replies = list[Any]()

    def post(self, command: bytes, answered: Any) -> None:
        self.sent.append(command.split(b"\r\n", 3)[2] + b" " + command.split(b"\r\n")[-2])
        self.pending.append((answered, 0.0, 0.0))

    def ask(self) -> None:
        """Send a command of another caller."""
        self.post(b"*1\r\n$3\r\nGET\r\n", lambda reply, failure: self.replies.append(failure or reply))


class Transport:
    """Sends the changes at once."""

    def __init__(self, topics: Topics, version: str) -> None:
        self.line = Line(topics)
        self.version = version

    def flush(self) -> None:
        for command, answered in self.line.topics.changes(self, self.line):  # type: ignore[arg-type]
            self.line.post(command, answered)

    def facts(self) -> dict[str, str]:
        return {"version": self.version}


class Client:
    """A client of one node, and the news that its waiters have."""

    def __init__(self, version: str = "7.0.15", *, in_shards: bool = True) -> None:
        self.news = list[bytes]()
        self.topics = Topics(BlockingRuntime(), self.news.append, in_shards=in_shards)
        self.transport = Transport(self.topics, version)
        self.topics.attach(self.transport)
        self.line = self.transport.line

    def hears(self, *data: bytes) -> list[bytes]:
        """Read what the server sends; return the channels that have news."""
        self.news.clear()
        self.line.data_received(b"".join(data))
        assert self.line.open
        return self.news


def test_a_channel_of_a_shard_is_followed_by_commands_of_its_own():
    client = Client()
    client.topics.follow(A, "1")
    assert client.hears(joined(A)) == [A]
    assert client.hears(message(A), message(B)) == [A]
    client.topics.unfollow("1")
    assert client.line.sent == [b"SSUBSCRIBE lock:{a}", b"SUNSUBSCRIBE lock:{a}", b"HELLO 3"]
    assert client.hears(message(A), left(A), MAP) == []
    assert not client.line.pending


@pytest.mark.parametrize(("version", "in_shards"), [("6.2.14", True), ("7.0.15", False)])
def test_a_common_channel_is_followed_where_there_are_no_others(version, in_shards):
    client = Client(version, in_shards=in_shards)
    client.topics.follow(A, "1")
    client.topics.unfollow("1")
    assert client.line.sent == [b"SUBSCRIBE lock:{a}", b"UNSUBSCRIBE lock:{a}"]
    client.hears(push(b"subscribe", A), push(b"unsubscribe", A))
    assert not client.line.pending


def test_an_importing_node_is_asked_to_serve_the_slot():
    client = Client()
    client.topics.asking = True
    client.topics.follow(A, "1")
    assert [sent.split()[0] for sent in client.line.sent] == [b"ASKING", b"SSUBSCRIBE"]
    assert client.hears(OK, joined(A)) == [A]
    client.topics.unfollow("1")
    assert [sent.split()[0] for sent in client.line.sent[2:]] == [b"ASKING", b"SUNSUBSCRIBE", b"HELLO"]
    client.hears(OK, left(A), MAP)
    assert not client.line.pending


def test_a_slot_that_left_is_news_and_its_channel_is_asked_for_again():
    client = Client()
    client.topics.follow(A, "1")
    client.topics.follow(A, "2")
    client.hears(joined(A))
    client.line.ask()
    assert client.hears(left(A)) == [A]
    assert client.topics.version(A) == 0, "no message would be heard"
    assert client.hears(OK) == []
    assert client.line.replies == [b"OK"], "the push was no reply"
    client.topics.follow(A, "1")
    assert client.line.sent[-1] == b"SSUBSCRIBE lock:{a}"
    assert client.hears(MOVED) == [A]
    assert client.topics.refusal(A).code == "MOVED"
    for ticket in ("1", "2"):
        client.topics.unfollow(ticket)
    client.topics.follow(A, "3")
    assert client.hears(joined(A)) == [A]
    assert client.topics.refusal(A) is None


@pytest.mark.parametrize(
    "replies",
    [
        (left(A), MAP),
        (left(A), MOVED, MAP),  # the slot left the node before it read the command
        (left(A), left(A), MAP),  # and came back
        (DENIED, MAP),
    ],
    ids=["left", "moved before", "moved and came back", "denied"],
)
def test_whatever_answers_sunsubscribe_each_other_command_has_its_reply(replies):
    client = Client()
    client.topics.follow(A, "1")
    client.hears(joined(A))
    client.line.ask()
    client.topics.unfollow("1")
    client.line.ask()
    assert client.hears(b"+FIRST\r\n", *replies, b"+SECOND\r\n") == []
    assert client.line.replies == [b"FIRST", b"SECOND"]
    assert not client.line.pending


def test_a_channel_that_is_followed_anew_is_not_lost_by_the_reply_to_its_end():
    client = Client()
    client.topics.follow(A, "1")
    client.hears(joined(A))
    client.topics.unfollow("1")
    client.topics.follow(A, "2")
    assert client.hears(left(A), MAP, joined(A)) == [A]
    assert client.topics.version(A) > 0
    assert client.hears(left(A)) == [A], "this time its slot has left"


def test_the_end_of_the_connection_reaches_each_command_once():
    client = Client()
    client.topics.follow(A, "1")
    client.topics.unfollow("1")
    client.line.ask()
    client.line.end("gone")
    (lost,) = client.line.replies
    assert lost.unknown
    client.topics.lost()
    client.transport.line = client.line = Line(client.topics)
    client.topics.follow(A, "2")
    client.topics.follow(B, "3")
    assert client.hears(joined(A), joined(B)) == [A, B]


def test_an_end_that_is_reported_after_the_next_connection_has_begun_does_no_harm():
    client = Client()
    client.topics.follow(A, "1")
    client.hears(joined(A))
    client.topics.unfollow("1")
    client.topics.lost()
    client.topics.follow(B, "2")
    assert client.hears(left(A), MAP, joined(B)) == [B]
    assert not client.line.pending


def test_the_refusal_of_an_earlier_subscription_is_not_that_of_the_last():
    client = Client()
    client.topics.follow(A, "1")
    client.topics.unfollow("1")
    client.topics.follow(A, "2")
    assert client.hears(MOVED) == []
    assert client.topics.refusal(A) is None
    client.topics.unfollow("2")
    assert [sent.split()[0] for sent in client.line.sent].count(b"SUNSUBSCRIBE") == 2, "else it stays subscribed"
    client.hears(MOVED, MAP, joined(A), left(A), MAP)
    assert not client.line.pending


def test_a_refused_channel_has_no_version_of_an_earlier_subscription():
    client = Client()
    client.topics.follow(A, "1")
    client.topics.unfollow("1")
    client.topics.follow(A, "2")
    assert client.hears(joined(A), left(A), MAP, MOVED) == [A, A]
    assert client.topics.refusal(A).code == "MOVED"
    assert client.topics.version(A) == 0


def test_a_refused_channel_is_news():
    client = Client()
    client.topics.follow(A, "1")
    assert client.hears(DENIED) == [A]
    assert isinstance(client.topics.refusal(A), ReplyError)


def test_changes_that_the_server_does_not_take_end_the_subscription():
    """It has stopped, say, and the buffers between are full: no thread waits for it without an end."""
    runtime, silent = BlockingRuntime(), threading.Event()
    ours, theirs = socket.socketpair()
    made = SimpleNamespace(_sock=ours, disconnect=ours.close)
    channel = TopicChannel(runtime, NotImplemented, "there", silent.set)
    channel._connection = TopicConnection(made, runtime, "there", lambda message: None)
    channel.owner = SimpleNamespace(topics=SimpleNamespace(changes=lambda *_: [(b"." * 10_000_000, None)]))
    thread = threading.Thread(target=channel.flush)
    with theirs:
        thread.start()
        ended = silent.wait(5.0)
    thread.join(5.0)
    assert ended
    assert channel._connection is None


def test_an_interrupt_before_the_changes_are_sent_ends_the_subscription(monkeypatch):
    """Ctrl-C in the thread that reads: else another one's channel counts as followed, and no message comes."""
    runtime, silent = BlockingRuntime(), threading.Event()
    ours, theirs = socket.socketpair()
    made = SimpleNamespace(_sock=ours, disconnect=ours.close)
    channel = TopicChannel(runtime, NotImplemented, "there", silent.set)
    channel._connection = connection = TopicConnection(made, runtime, "there", lambda message: None)
    channel._wake_up = WakeUp()
    channel.owner = SimpleNamespace(topics=Topics(runtime, NotImplemented), facts=dict, flush=channel.flush)
    channel.owner.topics.attach(channel.owner)
    with theirs, monkeypatch.context() as patch:
        patch.setattr(connection, "send_all", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            channel.owner.topics.follow(A, "1")
        patch.undo()
        finish(channel.receive(Flusher(), 0.3))
    assert silent.is_set()
    channel.close()


@both
def test_a_release_ends_the_subscription_of_a_ticket_whose_grant_was_interrupted(redis_server, namespace, harness):
    async def body(harness):
        async with harness.client(url_of(redis_server.url, "redisson"), namespace=namespace) as locks:
            ticket = Ticket(ticket_id(b"a" * 16), LeaseTerms(LockMode(), Owner("h", 1, "c"), 30.0))
            topic = locks.store._topic("x", ticket)
            hold = await locks.lock("x").acquire()
            await locks.store.try_acquire("x", ticket, join=True, within=5)
            locks.store._topics.follow(topic, ticket.id)
            locks.store._waiters.granted(ticket)  # and then a signal handler has raised
            await locks.store.release("x", ticket, reason=ReleaseReason.RELEASE, within=5)
            assert locks.store._topics.followers(topic) == []
            await hold.release()

    harness.run(body)
