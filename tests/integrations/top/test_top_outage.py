"""A store that does not answer, many names, and what a look costs the server."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from top_views import View, watch

from leasehold import Client, StoreUnavailable
from leasehold._inspection import Contender, LockInfo
from leasehold_lab.servers import RedisServer


class Counting:
    """A client that counts its looks, and whose store can be stopped."""

    def __init__(self, infos: list[LockInfo]) -> None:
        self.infos, self.looks = infos, 0
        self.under_way = self.most = 0
        self.open = threading.Event()
        self.open.set()
        self.error: Exception | None = None

    def holds(self, prefix: str) -> list[LockInfo]:
        self.looks += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        self.open.wait(30)
        self.under_way -= 1
        if self.error is not None:
            raise self.error
        return [info for info in self.infos if info.name.startswith(prefix)]


def infos(count: int) -> list[LockInfo]:
    holder = Contender("web-1:4711:c", "web-1", 4711, 1_790_000_000_000_000, 20.0, {"order": 7})
    waiter = Contender("web-2:4712:c", "web-2", 4712, None, 20.0, None)
    return [LockInfo(f"order:{at:05}", "mutex", 1, (holder,), (waiter,) * (at % 5), 0.0) for at in range(count)]


def test_a_server_that_ends_is_reported_and_found_again(namespace: str) -> None:
    with RedisServer() as server, Client.from_url(server.url, namespace=namespace) as client:

        async def body(view: View) -> None:
            await view.until(lambda: view.names == ["order:1", "order:2"])
            server.kill()
            await view.until(lambda: "the store is unavailable: " in view.text("#status"))
            assert "trying again every 0.1 s" in view.text("#status")
            assert view.names == ["order:1", "order:2"]
            await view.press("slash", "2", "enter")
            assert view.names == ["order:2"]
            server.start()
            hold = await view.call(client.lock("order:20").acquire)
            await view.until(lambda: view.names == ["order:20"])
            await view.call(hold.release)
            assert "unavailable" not in view.text("#status")

        for name in ("order:1", "order:2"):
            assert client.lock(name, renew=False).acquire() is not None
        watch(client, body)


def test_a_server_that_is_stopped_keeps_no_key_waiting(namespace: str) -> None:
    with (
        RedisServer() as server,
        Client.from_url(server.url, namespace=namespace, response_timeout=4.0) as client,
        client.lock("a", lease=60),
    ):

        async def body(view: View) -> None:
            await view.until(lambda: view.names == ["a"])
            with stopped(server):
                await view.until(lambda: "no answer for" in view.text("#status"))
                await view.press("enter", "b", "escape", "escape", "n")
                assert "no answer for" in view.text("#status")  # the look is still under way
                await view.until(lambda: "the store is unavailable: " in view.text("#status"))
            await view.until(lambda: "unavailable" not in view.text("#status"))
            assert view.names == ["a"]

        watch(client, body)


@contextmanager
def stopped(server: RedisServer) -> Generator[None]:
    server.pause()
    try:
        yield
    finally:
        server.resume()


def test_the_password_of_the_store_is_not_shown() -> None:
    client = Counting([])
    client.error = StoreUnavailable("redis://me:hunter2@db:6379 [red]does[/red] not answer")

    async def body(view: View) -> None:
        await view.until(lambda: "unavailable" in view.text("#status"))
        assert "hunter2" not in view.text("#status")
        assert "[red]does[/red]" in view.text("#status")

    watch(client, body)  # type: ignore[arg-type]


def test_a_mistake_is_shown_and_the_next_look_is_made() -> None:
    client = Counting(infos(1))
    client.error = KeyError("x")

    async def body(view: View) -> None:
        await view.until(lambda: "KeyError" in view.text("#status"))
        client.error = None
        await view.until(lambda: view.names == ["order:00000"])

    watch(client, body)  # type: ignore[arg-type]


def test_one_look_is_under_way_at_most() -> None:
    client = Counting(infos(3))

    async def body(view: View) -> None:
        client.open.clear()
        before = client.looks
        await view.until(lambda: client.looks > before)
        looks = client.looks
        await view.press("r", "r")
        await view.pilot.pause(0.5)
        assert client.looks == looks
        client.open.set()
        await view.until(lambda: client.looks > looks)

    watch(client, body)  # type: ignore[arg-type]
    assert client.most == 1


def test_each_interval_costs_one_look() -> None:
    client = Counting(infos(3))

    async def body(view: View) -> None:
        looks, start = client.looks, time.monotonic()
        await view.press("enter")
        await view.press("escape", "n", "w", "down", "slash", "1", "escape")
        await view.pilot.pause(2.0)
        assert client.looks - looks <= (time.monotonic() - start) / 0.5 + 2  # the one more is that of Enter

    watch(client, body, interval=0.5)  # type: ignore[arg-type]


def test_a_prefix_is_left_to_the_store() -> None:
    client = Counting(infos(30))

    async def body(view: View) -> None:
        await view.until(lambda: len(view.names) == 10)

    watch(client, body, prefix="order:0001")  # type: ignore[arg-type]


def test_ten_thousand_names_are_drawn_sorted_and_filtered() -> None:
    client = Counting(infos(10_000))

    async def body(view: View) -> None:
        await view.until(lambda: len(view.names) == 10_000)
        start = time.monotonic()
        await view.press("n", "end")
        assert view.table.chosen is not None
        assert view.table.chosen.info.name == "order:09999"
        assert view.lines[-1].startswith("order:09999")
        await view.press("home", "pagedown", "slash", "7", "7", "7", "7")
        assert view.names == ["order:07777"]
        assert time.monotonic() - start < 5

    watch(client, body, interval=2.0)  # type: ignore[arg-type]


def test_the_picture_of_the_docs(pictures: Path) -> None:
    now = time.time()
    meta = {"order:4711": "refund", "election/scheduler": "http://web-1:8000"}
    shown = [
        ("order:4711", "mutex", "web-1", 3, 0.6, 27.3),
        ("stock:42", "mutex", "web-3", 2, 2.1, 28.4),
        ("api:partner", "semaphore", "web-2", 1, 7.7, 12.0),
        ("election/scheduler", "election", "web-1", 1, 8127.0, 24.9),
        ("migration", "mutex", "deploy-7", 0, 81.2, 25.0),
        ("report:nightly", "rw", "jobs-1", 0, 316.0, 21.4),
    ]
    rows = []
    for at, (name, kind, host, waiters, age, left) in enumerate(shown):
        token = round((now - age) * 1e6)
        holder = Contender(f"{host}:{4200 + at}:c", host, 4200 + at, token, left, meta.get(name))
        waiter = Contender("web-2:4300:c", "web-2", 4300, None, 20.0, None)
        rows.append(LockInfo(name, kind, token, (holder,), (waiter,) * waiters, 0.0))
    client = Counting(rows)

    async def body(view: View) -> None:
        await view.until(lambda: len(view.names) == 6)
        rows[0] = LockInfo("order:4711", "mutex", round(now * 1e6), rows[0].holders, rows[0].waiters, 0.0)
        await view.until(lambda: view.table.rows[0].rate > 0)
        await view.pilot.pause(0.4)
        await view.press("p", "p")
        view.app.save_screenshot("top.svg", path=str(pictures))

    watch(client, body, size=(126, 13), where="redis://redis:6379/0")  # type: ignore[arg-type]
    assert "order:4711" in (pictures / "top.svg").read_text().replace("&#160;", " ")
