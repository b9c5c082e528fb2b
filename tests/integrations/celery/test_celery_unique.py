"""Unique tasks: queued once, on real workers; and messages that are delivered twice."""

from __future__ import annotations

import itertools
import json
import os
import signal
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery, chord
from workers import PATIENCE, Program, Site, most_at_once

from leasehold import Client, StoreUnavailable
from leasehold.integrations.celery import client_of, clients, locked_task
from leasehold.stores import registry
from leasehold_lab.faulty_store import Call, Fault, Faulty, Kind
from support.patience import until
from support.plugins.leaks import lasting


@pytest.fixture(scope="module")
def worker(site: Site) -> Iterator[Program]:
    with site.worker() as program:
        lasting.add(program.process.pid)
        yield program


def queued(site: Site, queue: str) -> int:
    with redis.Redis.from_url(site.broker) as broker:
        found: Any = broker.llen(queue)
    return int(found)


def copy_message(site: Site, queue: str) -> None:
    """Put the message in a queue into it once more, as another delivery."""
    with redis.Redis.from_url(site.broker) as broker:
        message = json.loads(broker.lrange(queue, 0, 0)[0])  # type: ignore[index]
        message["properties"]["delivery_tag"] = str(uuid.uuid4())
        broker.rpush(queue, json.dumps(message))


def test_a_second_call_returns_the_result_of_the_first_until_it_started(site: Site, shop: Any) -> None:
    first = shop.report.apply_async(("a",), queue="later")
    assert {shop.report.apply_async(("a",), queue="later").id for _ in range(5)} == {first.id}
    other = shop.report.apply_async(("b",), queue="later")
    assert other.id != first.id
    assert queued(site, "later") == 2
    with site.worker(name="later", QUEUE="later"):
        assert first.get(timeout=PATIENCE) == "a done"
        assert other.get(timeout=PATIENCE) == "b done"
    again = shop.report.apply_async(("a",), queue="later")
    assert again.id != first.id


def test_until_started_one_runs_and_one_more_is_queued(site: Site, shop: Any, worker: Program) -> None:
    first = shop.report.delay("c", 1.5)
    site.until_recorded("c", "begin")
    second = shop.report.delay("c", 0)
    assert second.id != first.id
    assert shop.report.delay("c", 0).id == second.id, "it waits for the lock, and so it is queued"
    assert second.get(timeout=PATIENCE) == "c done"
    assert most_at_once(site.records("c")) == 1


def test_until_ended_drops_while_it_runs(site: Site, shop: Any, worker: Program) -> None:
    first = shop.index.delay("d", 1)
    site.until_recorded("d", "begin")
    assert shop.index.delay("d").id == first.id
    assert first.get(timeout=PATIENCE) == "d done"
    until(lambda: shop.index.delay("d", 0).id != first.id, within=PATIENCE)


@pytest.mark.parametrize("fail", ["retry", "error"])
def test_a_retry_keeps_the_mark_and_an_error_frees_it(site: Site, shop: Any, worker: Program, fail: str) -> None:
    name = f"e-{fail}"
    first = shop.index.delay(name, 0, fail)
    if fail == "retry":
        site.until_recorded(name, "end")
        assert shop.index.delay(name).id == first.id, "it is queued again"
        assert first.get(timeout=PATIENCE) == f"{name} done"
    else:
        with pytest.raises(RuntimeError, match="it failed"):
            first.get(timeout=PATIENCE)
    until(lambda: shop.index.delay(name, 0).id != first.id, within=PATIENCE)


@pytest.mark.parametrize("canvas", ["chain", "chord", "replace"])
def test_a_part_that_something_waits_for_is_sent_though_one_is_queued(
    site: Site, shop: Any, worker: Program, canvas: str
) -> None:
    """Celery sends the last task of a chain with an empty rest, and a replacement with its nesting only."""
    name = f"l-{canvas}"
    queued_one, part, before = shop.index.apply_async((name,), queue="nowhere"), shop.index.si(name, 0), shop.ship
    match canvas:
        case "chain":
            result = (before.si(name, 0) | part).delay()
        case "chord":
            result = chord([before.si(name, 0), before.si(f"{name}2", 0)], part).delay()
        case _:
            result = shop.hand_to_index.delay(name)
    assert result.get(timeout=PATIENCE) == f"{name} done"
    assert shop.index.apply_async((name,), queue="nowhere").id == queued_one.id, "the mark is that of the first"


def test_a_message_that_may_not_have_been_sent_is_sent_again_with_its_id(site: Site, shop: Any) -> None:
    """A leader of beat died while it sent; the next one sends the same id."""
    for _ in range(2):
        assert shop.index.apply_async(("k",), queue="again", task_id="the same").id == "the same"
    assert shop.index.apply_async(("k",), queue="again", task_id="another").id == "the same"
    assert queued(site, "again") == 2


def test_the_mark_ends_by_itself(site: Site, shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shop.app.tasks["shop.index"].__class__, "unique_for", 0.5)
    first = shop.index.apply_async(("f",), queue="nowhere")
    assert shop.index.apply_async(("f",), queue="nowhere").id == first.id
    until(lambda: shop.index.apply_async(("f",), queue="nowhere").id != first.id, within=PATIENCE)


def test_a_message_that_was_not_sent_leaves_no_mark(site: Site, shop: Any) -> None:
    with pytest.raises(Exception, match="unsupported"):
        shop.index.apply_async(("g",), serializer="unsupported")
    assert shop.index.apply_async(("g",), queue="nowhere").id


def test_a_call_that_had_no_answer_is_not_taken_for_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store fails just when it has marked the name.

    Celery's broker in memory and ours are those of all tests of the process, so this one has a queue and a space of its
    own: messages of others would be counted, and a failed run keeps its space, so its mark, for the next.
    """
    url = f"memory:{uuid.uuid4()}"
    calls = itertools.count()
    down = True

    def plan(call: Call) -> Fault | None:
        number = next(calls)  # 0 reads the mark, and 1 writes it
        if not down or number == 0:
            return None
        return Fault(Kind.DROP_REPLY if number == 1 else Kind.REFUSE)

    app = Celery("shop", broker="memory://")
    app.conf.update(leasehold_url=url, task_default_queue=str(uuid.uuid4()))

    @locked_task(app, name="report:{name}", unique="until_started")
    def report(name: str) -> None: ...

    with Client(Faulty(registry.opener(url), plan), response_timeout=0.2) as client:
        monkeypatch.setitem(clients._clients, (os.getpid(), url, "default", None), client)
        with pytest.raises(StoreUnavailable):
            report.delay("a")
        down = False
        sent = report.delay("a")
        assert report.delay("a").id == sent.id
        with app.connection_for_write() as connection, connection.SimpleQueue(app.conf.task_default_queue) as queue:
            assert queue.qsize() == 1
            assert queue.get(block=False).headers["id"] == sent.id


def test_a_killed_worker_does_not_block_a_unique_task(site: Site, shop: Any) -> None:
    with site.worker(name="dies", ACKS_LATE="1", QUEUE="dies"):
        first = shop.index.apply_async(("h", 0.6), queue="dies")
        (record, *_) = site.until_recorded("h", "begin")
        os.kill(record["pid"], signal.SIGKILL)
        assert shop.index.apply_async(("h",), queue="dies").id == first.id, "it will be delivered again"
        assert first.get(timeout=PATIENCE) == "h done"
        until(lambda: shop.index.apply_async(("h", 0), queue="dies").id != first.id, within=PATIENCE)


@pytest.mark.parametrize("task", ["ship_or_skip", "call_partner"])
def test_a_message_that_is_delivered_twice_runs_once_at_a_time_and_is_not_dropped(
    site: Site, shop: Any, task: str
) -> None:
    """The broker has it twice, as after a visibility timeout that is shorter than the task."""
    name, queue = f"i-{task}", f"twice-{task}"
    late = {"ACKS_LATE": "1", "QUEUE": queue}
    result = getattr(shop, task).apply_async((name, 60), queue=queue)
    copy_message(site, queue)
    with site.worker(name=f"first-{task}", concurrency=1, **late) as first:
        site.until_recorded(name, "begin")
        with site.worker(name=f"second-{task}", concurrency=1, **late) as second:
            second.until_said(f"could not acquire '{'order' if task == 'ship_or_skip' else 'partner'}:{name}'")
            assert most_at_once(site.records(name)) == 1
            first.send(signal.SIGKILL)
            until(lambda: sum(each["what"] == "begin" for each in site.records(name)) == 2, within=PATIENCE)
    begins = [each for each in site.records(name) if each["what"] == "begin"]
    assert {each["id"] for each in begins} == {result.id}


def test_the_lock_shows_which_message_holds_it(site: Site, shop: Any, worker: Program) -> None:
    result = shop.ship.delay("j", 1)
    site.until_recorded("j", "begin")
    info = client_of(shop.app).inspect("order:j")
    assert info is not None
    assert info.holders[0].meta == {"task": "shop.ship", "id": result.id}
    result.get(timeout=PATIENCE)
