"""Locks of requests in uvicorn with two workers: exact counts, clients that go away, a store that dies, a shutdown."""

from __future__ import annotations

import json
import os
import signal
import socket
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from web_servers import Serving, Shop, serving, visited

from support.patience import until
from support.workers import PATIENCE

POST = "POST {} HTTP/1.1\nHost: shop\nContent-Type: application/json\nContent-Length: {}\n\n"

KINDS = ["brief", "brief-in-a-thread"]
"""Endpoints that are coroutines, and those that run in threads."""


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("shop")) as shop:
        yield shop


@pytest.fixture
def running(started: Serving) -> Iterator[Shop]:
    with visited(started) as shop:
        yield shop


@pytest.fixture
def name() -> str:
    return uuid.uuid4().hex  # a test that is repeated finds nothing of its first run


def test_a_counter_that_many_requests_raise_is_exact(running: Shop, name: str) -> None:
    paths = [f"/count/{name}", f"/count-in-a-thread/{name}"] * 150
    with ThreadPoolExecutor(30) as threads:
        answers = list(threads.map(running.post, paths))
    assert [answer.status_code for answer in answers] == [200] * 300
    assert (running.of.folder / f"count-{name}").read_text() == "300"
    assert len({answer.json() for answer in answers}) == 2, "both workers counted"


def test_a_client_that_goes_away_while_it_waits_leaves_no_lock(running: Shop, name: str) -> None:
    with running.rival.lock(f"work:{name}"), running.half(POST.format(f"/work/{name}", 0)):
        until(lambda: running.waiters(f"work:{name}") == 1, within=PATIENCE)
    running.of.journal.until(1, "end", name=name)  # uvicorn does not end the request of a client that has gone
    running.is_free_at_once(f"work:{name}")


def test_a_client_that_goes_away_in_the_middle_of_its_body_leaves_no_lock(running: Shop, name: str) -> None:
    with running.half(POST.format(f"/upload/{name}", 100) + "0123456789"):
        running.begun(name)
        assert running.rival.lock(f"work:{name}").locked()
    running.is_free_at_once(f"work:{name}")


def test_the_body_that_names_the_lock_is_read_before(running: Shop, name: str) -> None:
    body = json.dumps({"name": name})
    with running.half(POST.format("/orders", len(body)) + body[:-5]) as connection:
        connection.shutdown(socket.SHUT_WR)
        connection.recv(4096)
    assert running.rival.inspect(f"work:{name}") is None
    answer = running.http.post("/orders", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()) == (200, f"work:{name}")


def test_the_lock_is_held_until_the_response_was_sent(running: Shop, name: str) -> None:
    answer = running.http.get(f"/stream/{name}", params={"parts": 20})
    assert answer.text == "held\n" * 20
    running.is_free_at_once(f"work:{name}")


def test_a_client_that_goes_away_in_the_middle_of_the_response_leaves_no_lock(running: Shop, name: str) -> None:
    with running.half(f"GET /stream/{name}?parts=1000000 HTTP/1.1\nHost: shop\n\n") as connection:
        got = b""
        while b"held" not in got:
            got += connection.recv(4096)
        assert running.rival.lock(f"work:{name}").locked()
    running.is_free_at_once(f"work:{name}")


def test_who_does_not_get_the_lock_in_time_may_try_again(running: Shop, name: str) -> None:
    with running.rival.lock(f"brief:{name}"):
        answer = running.post(f"/brief/{name}")
    assert (answer.status_code, answer.headers["Retry-After"]) == (423, "7")
    assert answer.json() == {"detail": "another request holds the lock; try again"}


def test_a_killed_worker_is_succeeded_by_the_end_of_its_lease(running: Shop, name: str) -> None:
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(outcome, lambda: running.post(f"/brief/{name}?seconds=60"))
        os.kill(running.begun(name)["pid"], signal.SIGKILL)
        assert answer.result(PATIENCE) == 0
        running.is_free_at_once(f"brief:{name}")
        until(lambda: outcome(lambda: running.post(f"/brief/{name}")) == 200, within=PATIENCE)


def test_a_store_that_dies_is_503_and_the_lock_it_took_along_409(tmp_path: Path) -> None:
    with serving(tmp_path) as started, visited(started) as shop, ThreadPoolExecutor(2) as threads:
        assert shop.http.get("/ready").status_code == 200
        held = [threads.submit(shop.post, f"/{kind}/{kind}?seconds=30") for kind in KINDS]
        for kind in KINDS:
            shop.begun(kind)
        started.server.kill()
        for kind in KINDS:
            refused = shop.post(f"/{kind}/other")
            assert (refused.status_code, refused.headers["Retry-After"]) == (503, "7")
        assert shop.http.get("/ready").status_code == 503
        for request in held:
            lost = request.result(PATIENCE)
            assert (lost.status_code, "Retry-After" in lost.headers) == (409, False)
        started.server.start()
        until(lambda: shop.http.get("/ready").status_code == 200, within=PATIENCE)
        for kind in KINDS * 4:
            assert shop.post(f"/{kind}/{kind}").json() == "sold"  # by either worker


@pytest.mark.parametrize(
    ("options", "seconds", "answered"), [((), 1, True), (("--timeout-graceful-shutdown", "1"), 60, False)]
)
def test_a_shutdown_releases(tmp_path: Path, options: tuple[str, ...], seconds: int, answered: bool) -> None:
    with serving(tmp_path, *options) as started, visited(started) as shop, ThreadPoolExecutor(1) as thread:
        answer = thread.submit(outcome, lambda: shop.post(f"/work/late?seconds={seconds}"))
        shop.begun("late")
        assert started.uvicorn.stop() == 0
        assert (answer.result(PATIENCE) == 200) == answered
        shop.is_free_at_once("work:late")


def outcome(request: Callable[[], httpx.Response]) -> int:
    """Return the status of the answer; 0 if the connection was cut."""
    try:
        return request().status_code
    except httpx.TransportError:
        return 0
