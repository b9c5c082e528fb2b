"""Tasks under a lock, on real workers: busy, lost, at most so many, and a store that does not answer."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from workers import PATIENCE, Program, Site, most_at_once

from leasehold import Client
from leasehold_lab.servers import RedisServer
from support.patience import until
from support.plugins.leaks import lasting

EXAMPLE = Path(__file__).parents[3] / "examples" / "integrations" / "celery"


@pytest.fixture(scope="module")
def worker(site: Site) -> Iterator[Program]:
    with site.worker() as program:
        lasting.add(program.process.pid)
        yield program


def test_tasks_of_one_name_run_one_at_a_time_and_all_run(site: Site, shop: Any, worker: Program) -> None:
    results = [shop.ship.delay("a", seconds=0.1) for _ in range(8)]
    assert [each.get(timeout=PATIENCE) for each in results] == ["a done"] * 8
    records = site.records("a")
    assert most_at_once(records) == 1
    tokens = [each["token"] for each in records if each["what"] == "begin"]
    assert tokens == sorted(set(tokens)), "each run has a higher token"


def test_busy_retries_do_not_count_as_max_retries(site: Site, shop: Any, worker: Program) -> None:
    order = str(uuid.uuid4())
    with Client.from_url(site.server.url) as rival, rival.lock(f"order:{order}"):
        result = shop.ship.delay(order)
        until(lambda: worker.said().count(f"could not acquire 'order:{order}'") > 4, within=PATIENCE)  # max_retries: 3
        assert not result.ready(), result.result
    assert result.get(timeout=PATIENCE) == f"{order} done"


def test_skip_ends_without_a_run(site: Site, shop: Any, worker: Program) -> None:
    with Client.from_url(site.server.url) as rival, rival.lock("order:c"):
        assert shop.ship_or_skip.delay("c").get(timeout=PATIENCE) is None
    assert site.records("c") == []
    assert shop.ship_or_skip.delay("c").get(timeout=PATIENCE) == "c done"


def test_reject_gives_the_message_back_to_the_broker(site: Site, shop: Any, worker: Program) -> None:
    order = str(uuid.uuid4())
    with Client.from_url(site.server.url) as rival, rival.lock(f"order:{order}"):
        shop.ship_or_reject.delay(order)
        worker.until_said(f"'order:{order}' is held by")
    assert shop.ship_or_reject.delay(order).get(timeout=PATIENCE) == f"{order} done"
    assert len(site.records(order)) == 2


def test_at_most_so_many_run_at_once(site: Site, shop: Any, worker: Program) -> None:
    results = [shop.call_partner.delay("e") for _ in range(8)]
    assert [each.get(timeout=PATIENCE) for each in results] == ["e done"] * 8
    assert most_at_once(site.records("e")) == 2


def test_a_lost_lease_is_a_retry(site: Site, shop: Any, worker: Program) -> None:
    assert shop.loses.delay("f", 2).get(timeout=PATIENCE) == "f done after 2"


def test_a_lease_that_is_lost_too_often_fails(site: Site, shop: Any, worker: Program) -> None:
    with pytest.raises(Exception, match="loses:g"):
        shop.loses.delay("g", 9).get(timeout=PATIENCE)
    assert len(site.records("g")) == 6, "max_retries is 2: three runs"


def test_called_as_a_function_it_runs_under_the_lock(site: Site, shop: Any) -> None:
    with Client.from_url(site.server.url) as rival:
        with rival.lock("order:h"), pytest.raises(TimeoutError, match="order:h"):
            shop.ship("h")
        assert shop.ship("h", 0) == "h done"
    assert len(site.records("h")) == 2


def test_eager_tasks_run_under_the_lock(site: Site, shop: Any) -> None:
    assert shop.ship.apply(("i", 0)).get() == "i done"
    with Client.from_url(site.server.url) as rival, rival.lock("order:i"):
        assert isinstance(shop.ship.apply(("i", 0)).result, TimeoutError)
        assert isinstance(shop.ship_or_reject.apply(("i", 0)).result, TimeoutError)
        skipped = shop.ship_or_skip.apply(("i", 0))
        assert (skipped.state, skipped.result) == ("SUCCESS", None)
    assert len(site.records("i")) == 2, "one ran"


def test_a_killed_process_of_the_pool_blocks_for_a_lease_only(site: Site, shop: Any) -> None:
    with site.worker(name="late", ACKS_LATE="1", QUEUE="late"):
        result = shop.ship.apply_async(("j", 0.5), queue="late")
        (first, *_) = site.until_recorded("j", "begin")
        os.kill(first["pid"], signal.SIGKILL)
        assert result.get(timeout=PATIENCE) == "j done"
    begins = [each for each in site.records("j") if each["what"] == "begin"]
    assert [each["id"] for each in begins] == [result.id] * 2, "the message was delivered again"
    assert begins[1]["token"] > begins[0]["token"]


@pytest.mark.parametrize("pool", ["threads", "gevent"])
def test_other_pools_lock_renew_and_limit(site: Site, shop: Any, pool: str) -> None:
    """The leases are shorter than the tasks, so they are renewed: by a thread, or by a greenlet beside the tasks."""
    queue = f"pool-{pool}"
    with site.worker(pool=pool, concurrency=6, name=pool, QUEUE=queue) as program:
        slow = shop.ship.apply_async((f"k-{pool}", 3), queue=queue)
        two = [shop.call_partner.apply_async((f"l-{pool}", 0.4), queue=queue) for _ in range(6)]
        one = [shop.ship.apply_async((f"m-{pool}", 0.1), queue=queue) for _ in range(4)]
        for each in (*two, *one, slow):
            each.get(timeout=PATIENCE)
        assert most_at_once(site.records(f"l-{pool}")) == 2
        assert most_at_once(site.records(f"m-{pool}")) == 1
        assert len(site.records(f"k-{pool}")) == 2, "it kept its lease of 2 s for 3 s"
        tokens = {each["token"] for each in site.records(f"m-{pool}")}
        assert len(tokens) == 4, "each task saw its own hold"
        if pool == "gevent":
            program.until_said("patched by gevent: True")
        assert program.terminate() == 0, program.said()
        assert "Traceback" not in program.said()


def test_a_store_that_does_not_answer_is_a_retry(site: Site, shop: Any) -> None:
    with RedisServer() as store, site.worker(name="apart", STORE_URL=store.url, QUEUE="apart") as program:
        store.kill()
        result = shop.ship.apply_async(("n", 0), queue="apart")
        program.until_said("Retry")
        assert site.records("n") == [], "it never runs without the lock"
        store.start()
        assert result.get(timeout=PATIENCE) == "n done"


def test_a_store_that_dies_in_the_middle_is_a_retry(site: Site, shop: Any) -> None:
    with RedisServer() as store, site.worker(name="middle", STORE_URL=store.url, QUEUE="middle"):
        result = shop.ship.apply_async(("o", 4), queue="middle")
        site.until_recorded("o", "begin")
        store.kill()
        site.until_recorded("o", "end")  # the lease of 2 s is over
        store.start()
        site.until_recorded("o", "begin", 2)
        assert result.get(timeout=PATIENCE) == "o done"


def test_the_example_runs(site: Site, tmp_path: Path) -> None:
    server = site.server.url.rpartition("/")[0]
    env = {"REDIS": server, "BROKER_URL": f"{server}/0", "PYTHONPATH": str(EXAMPLE)}  # celery reads BROKER_URL, too
    own = Site(site.server, tmp_path, env=env)
    with own.worker(name="example"), own.run("sender", str(EXAMPLE / "shop.py")) as sender:
        assert sender.process.wait(PATIENCE) == 0, sender.said()
        assert "1 report: the report of today" in sender.said()
