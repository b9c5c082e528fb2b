"""`leasehold top` shows the names with their holders and waiters, sorts, filters, inspects and breaks."""

from __future__ import annotations

import itertools
import threading
import time

import pytest
from textual.widgets import Input
from top_views import View, waiting, watch

from leasehold import Client
from leasehold.cli.top.looks import WINDOW


def test_names_are_listed_by_waiters_and_the_list_follows_the_store(client: Client) -> None:
    async def body(view: View) -> None:
        await view.until(lambda: view.names == ["busy", "calm"])
        assert view.lines[0].split() == ["NAME", "WAITERS*", "HOLDER", "AGE", "LEFT", "PER", "S", "KIND", "META"]
        busy, calm = view.lines[1].split(), view.lines[2].split()
        assert (busy[0], busy[1]) == ("busy", "2")
        assert (calm[0], calm[1], calm[-1]) == ("calm", "0", "nightly")
        assert "2 names, 2 holders, 2 waiters" in view.text("#status")
        await view.call(second.release)
        await view.until(lambda: view.names == ["busy"])
        await view.call(first.release)
        await view.until(lambda: view.names == [])
        assert view.lines[1] == "no lock is held"

    first = client.lock("busy", fair=True).acquire()
    second = client.lock("calm", meta="nightly").acquire()
    assert first is not None
    assert second is not None
    with waiting(client, "busy", 2):
        watch(client, body)


def test_the_age_is_what_the_token_tells_and_within_what_was_seen(client: Client) -> None:
    async def body(view: View) -> None:
        await view.until(lambda: view.names == ["a"])
        row = view.table.rows[0]
        assert 0 <= row.age < 60
        assert not row.age_at_least
        await view.until(lambda: view.table.rows[0].age > row.age)

    with client.lock("a"):
        watch(client, body)


def test_the_lease_runs_down_and_is_renewed(client: Client) -> None:
    async def body(view: View) -> None:
        await view.until(lambda: view.names == ["a"])
        assert 0 < view.table.rows[0].left <= 3
        lowest = 3.0
        for _ in range(30):
            await view.pilot.pause(0.1)
            lowest = min(lowest, view.table.rows[0].left)
        assert 0 < lowest < 2.9

    with client.lock("a", lease=3):
        watch(client, body)


def test_a_lock_that_is_passed_on_has_a_rate(client: Client) -> None:
    stop, grants = threading.Event(), itertools.count(1)

    def pass_on() -> None:
        while not stop.wait(0.02):
            with client.lock("hot"):
                next(grants)
                stop.wait(0.25)

    async def body(view: View) -> None:
        began = time.monotonic()  # after the first look
        await view.until(lambda: view.looked > began + 1 and any(row.rate > 0 for row in view.table.rows))
        rate, over = max(row.rate for row in view.table.rows), min(view.looked - began, WINDOW)
        assert rate <= next(grants) / over  # the last grant may not be counted yet

    thread = threading.Thread(target=pass_on)
    thread.start()
    try:
        watch(client, body)
    finally:
        stop.set()
        thread.join()


def test_a_filter_is_typed_and_removed(locks: Client) -> None:
    async def body(view: View) -> None:
        await view.until(lambda: len(view.names) == 3)
        await view.press("slash")
        await view.type("oRd")
        assert view.names == ["order:1", "order:2"]
        await view.press("enter")
        assert view.app.focused is view.table
        assert "filter 'oRd'" in view.text("#status")
        await view.press("slash")
        await view.type("none")  # what was there is selected
        assert view.names == []
        assert "no name contains 'none'" in view.lines[1]
        await view.press("escape")
        assert view.names == ["order:1", "order:2", "stock"]

    with locks.lock("order:1"), locks.lock("order:2"), locks.lock("stock"):
        watch(locks, body)


def test_keys_of_the_frame_are_text_while_a_filter_is_typed(locks: Client) -> None:
    async def body(view: View) -> None:
        await view.until(lambda: view.names == ["qbpw"])
        await view.press("slash")
        await view.type("qbpw")
        assert view.names == ["qbpw"]
        assert view.app.query_one("#filter", Input).value == "qbpw"
        assert len(view.app.screen_stack) == 1

    with locks.lock("qbpw"):
        watch(locks, body)


def test_keys_sort_and_the_same_key_reverses(locks: Client) -> None:
    async def body(view: View) -> None:
        await view.until(lambda: len(view.names) == 3)
        orders = {
            "n": ["a", "b", "c"],
            "w": ["c", "a", "b"],
            "l": ["b", "c", "a"],
            "a": ["a", "b", "c"],
        }
        for key, order in orders.items():
            await view.press(key)
            assert view.names == order, key
        await view.press("n")
        await view.press("n")
        assert view.names == ["c", "b", "a"]
        assert "NAME*" in view.lines[0]

    with locks.lock("a", lease=30), locks.lock("b", lease=10):
        hold = locks.lock("c", lease=20).acquire()
        assert hold is not None
        with waiting(locks, "c", 1):
            watch(locks, body)
            hold.release()


def test_the_cursor_stays_with_its_name(locks: Client) -> None:
    async def body(view: View) -> None:
        await view.until(lambda: len(view.names) == 3)
        await view.press("n", "down")
        assert view.table.chosen is not None
        assert view.table.chosen.info.name == "b"
        await view.call(first.release)
        await view.until(lambda: view.names == ["b", "c"])
        assert view.table.chosen.info.name == "b"

    first = locks.lock("a").acquire()
    assert first is not None
    with locks.lock("b"), locks.lock("c"):
        watch(locks, body)


def test_names_and_meta_of_strangers_are_text(locks: Client) -> None:
    name = "[red]x[/red]\x1b[2J"

    async def body(view: View) -> None:
        await view.until(lambda: view.names == [name])
        assert view.lines[1].startswith(r"[red]x[/red]\x1b[2J ")
        assert view.lines[1].endswith("[b]meta[/b]")
        await view.press("enter")
        assert r"[red]x[/red]\x1b[2J (mutex)" in view.over
        assert "meta [b]meta[/b]" in view.over
        await view.press("b")
        assert r"[red]x[/red]\x1b[2J (mutex)" in view.over

    with locks.lock(name, meta="[b]meta[/b]"):
        watch(locks, body)


def test_pausing_keeps_what_is_shown(locks: Client) -> None:
    async def body(view: View) -> None:
        await view.until(lambda: view.names == ["a"])
        await view.press("p")
        assert "PAUSED" in view.text("#status")
        await view.call(hold.release)
        await view.pilot.pause(0.5)
        assert view.names == ["a"]
        await view.press("r")
        await view.until(lambda: view.names == [])
        await view.press("p")
        assert "PAUSED" not in view.text("#status")

    found = locks.lock("a").acquire()
    assert found is not None
    hold = found
    watch(locks, body)


def test_the_keys_are_listed(locks: Client) -> None:
    async def body(view: View) -> None:
        await view.press("question_mark")
        assert "sort by waiters, name, age, lease left, hand-overs" in view.over
        await view.press("q")
        assert len(view.app.screen_stack) == 1
        await view.press("q")
        await view.until(lambda: not view.app.is_running)

    watch(locks, body)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_last_columns_are_left_out_on_a_narrow_terminal(locks: Client, width: int) -> None:
    async def body(view: View) -> None:
        await view.until(lambda: len(view.names) == 1)
        assert ("META" in view.lines[0], "WAITERS" in view.lines[0]) == (width == 200, True)
        assert all(len(line) <= width for line in view.lines)
        assert view.lines[1].startswith("a-long-name-of-a-loc")

    with locks.lock("a-long-name-of-a-lock-of-a-service-far-away"):
        watch(locks, body, size=(width, 24))
