"""`leasehold top`: a name is inspected, and broken."""

from __future__ import annotations

import math
import re
import time

import pytest
from textual.widgets import Input
from top_views import View, waiting, watch

from leasehold import Client, LeaseLost
from leasehold._inspection import Contender, LockInfo


def test_inspecting_shows_holders_queue_and_meta_and_follows_the_store(client: Client) -> None:
    async def body(view: View) -> None:
        await view.until(lambda: view.names == ["stock"])
        await view.press("enter")
        assert view.over.startswith("stock (mutex), last token ")
        for part in ("held by ", f"token {hold.token}", "meta refill", "waiting: 2", "  1. ", "  2. "):
            assert part in view.over
        held = re.search(r"held for ([\d.]+) s,", view.over)
        assert held is not None
        assert float(held[1]) <= time.monotonic() - began + 0.05  # it is rounded
        await view.call(hold.release)
        await view.until(lambda: "stock is free: nobody holds it" in view.over)
        await view.press("escape")
        assert len(view.app.screen_stack) == 1

    began = time.monotonic()
    found = client.lock("stock", meta="refill", fair=True).acquire()
    assert found is not None
    hold = found
    with waiting(client, "stock", 2):
        watch(client, body)


def test_a_leader_is_inspected_with_what_it_proclaimed(client: Client) -> None:
    election = client.election("boss")

    async def body(view: View) -> None:
        await view.until(lambda: view.names == ["election/boss"])
        assert "election" in view.lines[1]
        await view.press("enter")
        await view.until(lambda: "meta http://here" in view.over)

    with election.campaign() as leadership:
        leadership.proclaim("http://here")
        watch(client, body)


def test_breaking_asks_for_the_name_and_takes_the_lock(client: Client) -> None:
    hold = client.lock("stock", lease=30).acquire()
    assert hold is not None

    async def body(view: View) -> None:
        await view.until(lambda: view.names == ["stock"])
        await view.press("b")
        assert f"token {hold.token}" in view.over
        assert "may run alongside" in view.over
        await view.type("stick")
        await view.press("enter")
        assert "'stick' is not the name nor the token" in view.over
        assert await view.call(client.inspect, "stock") is not None
        view.app.screen.query_one(Input).value = ""
        await view.type("stock")
        await view.press("enter")
        await view.until(lambda: "broken: the holder of 'stock'" in view.text("#message"))
        await view.until(lambda: view.names == [])

    watch(client, body)
    with pytest.raises(LeaseLost):
        hold.renew()


def test_only_the_holder_that_was_seen_is_broken(client: Client) -> None:
    async def body(view: View) -> None:
        await view.until(lambda: view.names == ["stock"])
        await view.press("b")
        await view.call(hold.release)
        second = await view.call(client.lock("stock").acquire)
        await view.type(str(hold.token))
        await view.press("enter")
        await view.until(lambda: f"with token {hold.token} is gone" in view.text("#message"))
        await view.call(second.renew)
        await view.call(second.release)

    found = client.lock("stock").acquire()
    assert found is not None
    hold = found
    watch(client, body)


def test_one_of_several_holders_is_named_by_its_token(locks: Client) -> None:
    permits = [locks.semaphore("api", permits=3).acquire() for _ in range(2)]
    one, other = permits
    assert one is not None
    assert other is not None

    async def body(view: View) -> None:
        await view.until(lambda: view.names == ["api"])
        assert "+1" in view.lines[1]
        await view.press("b")
        await view.type("api")
        await view.press("enter")
        assert "is not the token of a holder" in view.over
        view.app.screen.query_one(Input).value = ""
        await view.type(str(other.token))
        await view.press("enter")
        await view.until(lambda: "broken" in view.text("#message"))

    watch(locks, body)
    one.renew()
    with pytest.raises(LeaseLost):
        other.renew()
    one.release()


def test_escape_breaks_nothing(locks: Client) -> None:
    async def body(view: View) -> None:
        await view.until(lambda: view.names == ["a"])
        await view.press("enter", "b")
        await view.type("a")
        await view.press("escape", "escape")
        assert len(view.app.screen_stack) == 1
        assert view.names == ["a"]

    with locks.lock("a") as hold:
        watch(locks, body)
        hold.renew()


def test_a_lock_of_another_program_without_an_end_is_shown_and_not_broken(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(view: View) -> None:
        await view.until(lambda: view.names == ["stock"])
        await view.press("enter")
        assert "held by another program, no token, client 6b7b6e8c, no end" in view.over
        await view.press("escape")
        await view.press("b")
        assert len(view.app.screen_stack) == 1
        assert "'stock' is held by another program, whose lock has no token" in view.text("#message")

    holder = Contender("another program:0:6b7b6e8c", "another program", 0, None, math.inf, None)
    info = LockInfo("stock", "mutex", 0, (holder,), (), 0.0)
    monkeypatch.setattr(Client, "holds", lambda self, prefix="": [info])
    watch(client, body)
