"""The history of holders: from events, from inspections, within its bounds."""

from __future__ import annotations

import os
import signal
import sys
import threading

import pytest

from leasehold import Client
from leasehold.events import Acquired, Event, Lost, Queued, Released
from leasehold.observability._one_at_a_time import OneAtATime
from leasehold.observability.history import History, Holding, Interval, overlaps


def event(kind: type[Event], name: str, owner: str, at: float, token: int, *more: object) -> Event:
    return kind(name, owner, at, at, "redis://web-1:6379", "default", "mutex", token, *more)  # type: ignore[call-arg]


def test_it_is_an_observer_of_a_client() -> None:
    history = History()
    with Client.from_url("memory:", observer=history) as locks:
        with locks.lock("stock:42") as hold:
            [held] = history.intervals("stock:42")
            assert (held.owner, held.token, held.end, held.ending) == (locks.owner, hold.token, None, "held")
        [held] = history.intervals("stock:42")
        assert held.ending == "released"
        assert held.end is not None
        assert 0 <= held.seconds == held.end - held.start
    assert history.names() == ["stock:42"]


def test_a_loss_ends_an_interval_with_its_reason() -> None:
    history = History()
    history(event(Acquired, "a", "x", 1.0, 7, 0.5))
    history(event(Lost, "a", "x", 4.0, 7, "the lease expired"))
    [held] = history.intervals()
    assert (held.start, held.end, held.ending, held.why) == (1.0, 4.0, "lost", "the lease expired")
    assert held.waited == 0.5


def test_a_release_of_which_it_has_no_beginning_counts_back_from_its_end() -> None:
    history = History()
    history(event(Released, "a", "x", 10.0, 7, 2.5, False))
    [held] = history.intervals()
    assert (held.start, held.end, held.ending) == (7.5, 10.0, "unconfirmed")


def test_it_keeps_the_last_of_each_name_and_the_names_used_last() -> None:
    history = History(names=2, per_name=3)
    for name in ("a", "b", "c"):
        for number in range(10):
            history(event(Acquired, name, "x", float(number), number, 0.0))
            history(event(Released, name, "x", number + 0.5, number, 0.5, True))
    assert history.names() == ["b", "c"]
    assert [each.token for each in history.intervals("c")] == [7, 8, 9]
    with pytest.raises(ValueError, match="at least 1"):
        History(per_name=0)


def test_what_is_held_is_kept_however_many_names_there_are() -> None:
    history = History(names=1)
    for name in ("a", "b", "c"):
        history(event(Acquired, name, "x", 1.0, 7, 0.0))
    assert history.names() == ["a", "b", "c"]


def test_inspections_show_the_holders_of_all_clients() -> None:
    history = History()
    first, second = Holding("a", "mutex", "x", 7), Holding("a", "mutex", "y", 8)
    history.saw([first], at=1.0)
    history.saw([first, Holding("b", "rw", "x", 9)], at=2.0)
    history.saw([second], at=3.0)
    shown = [(each.owner, each.start, each.end, each.ending) for each in history.intervals("a")]
    assert shown == [("x", 1.0, 3.0, "gone"), ("y", 3.0, None, "held")]


def test_long_pauses_between_inspections_are_gaps() -> None:
    history, held = History(), Holding("a", "mutex", "x", 7)
    history.saw([held], at=1.0, longest_pause=2.0)
    history.saw([held], at=3.0, longest_pause=2.0)
    history.saw([held], at=9.0, longest_pause=2.0)
    history.saw([held, Holding("b", "mutex", "x", 8)], at=20.0)
    assert history.gaps() == [(3.0, 9.0)]
    assert [(each.start, each.end, each.seen_begin) for each in history.intervals()] == [
        (1.0, None, False),
        (20.0, None, True),
    ], "the same token before and after a gap is one hold"


def test_all_names_together_have_a_bound() -> None:
    history = History(total=3)
    for name in ("a", "b", "c"):
        for number in range(2):
            history(event(Released, name, "x", number + 1.0, number, 0.5, True))
    assert [(each.name, each.token) for each in history.intervals()] == [("c", 0), ("b", 1), ("c", 1)]
    assert history.names() == ["b", "c"]
    history(event(Released, "c", "x", 3.0, 2, 0.5, True))
    assert history.names() == ["c"]
    with pytest.raises(ValueError, match="total"):
        History(total=0)


def test_events_and_inspections_of_the_same_hold_are_one_interval() -> None:
    history = History()
    history(event(Acquired, "a", "x", 1.0, 7, 0.0))
    history.saw([Holding("a", "mutex", "x", 7)], at=2.0)
    history(event(Released, "a", "x", 3.0, 7, 2.0, True))
    history.saw([], at=4.0)
    [held] = history.intervals()
    assert (held.start, held.end, held.ending) == (1.0, 3.0, "released")


def test_two_holders_at_once_are_found() -> None:
    def made(start: float, end: float | None, token: int, kind: str = "mutex", name: str = "a") -> Interval:
        return Interval(name, kind, "x", token, start, end)

    one, two, three = made(1, 3, 1), made(2, None, 2), made(3, 4, 3)
    assert overlaps([three, two, one]) == [(one, two), (two, three)]
    assert overlaps([one, three, made(1, 3, 4, name="b")]) == [], "those that only touch, and those of other names"
    assert overlaps([made(1, 3, 1, "semaphore"), made(2, 4, 2, "semaphore")]) == [], "permits"


def test_only_what_matters_is_wanted() -> None:
    history = History()
    assert [history.wants(kind) for kind in (Acquired, Released, Lost, Queued)] == [True, True, True, False]


def test_a_signal_handler_may_call_while_its_own_thread_is_inside() -> None:
    done: list[int] = []

    def handle(value: int) -> None:
        if value == 1:
            signal.raise_signal(signal.SIGUSR1)
        done.append(value)

    take = OneAtATime(handle)
    before = signal.signal(signal.SIGUSR1, lambda *_: take(2))
    try:
        take(1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert done == [1, 2], "the interrupted value first"


def test_threads_take_turns() -> None:
    inside, most = 0, 0

    def handle(_: int) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        inside -= 1

    take = OneAtATime(handle)
    threads = [threading.Thread(target=lambda: [take(1) for _ in range(2000)]) for _ in range(4)]
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    finally:
        sys.setswitchinterval(switch)
    assert most == 1


def test_a_forked_child_does_not_wait_for_a_thread_of_its_parent() -> None:
    history, entered, leave = History(), threading.Event(), threading.Event()

    def stay() -> None:
        with history._take.mutex:
            entered.set()
            leave.wait(30)

    thread = threading.Thread(target=stay)
    thread.start()
    assert entered.wait(30)
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        history(event(Acquired, "a", "x", 1.0, 7, 0.0))
        os._exit(len(history.names()))
    leave.set()
    thread.join(30)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
