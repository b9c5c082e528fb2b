"""The last hold of a re-entrant lock is released elsewhere while its owner acquires again, and then really holds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from leasehold import Client
from leasehold.primitives.locks.rlock import Entries, Entry
from leasehold.stores.memory import Memory

SOON = 10.0

KINDS: dict[str, Callable[[Client], Any]] = {
    "rlock": lambda client: client.rlock("a"),
    "writer": lambda client: client.rw_lock("a").writer(),
}

each = pytest.mark.parametrize("kind", KINDS)


def check_held(hold: Any, other: Client, kind: str) -> None:
    """Check that a hold excludes others."""
    assert hold is not None
    hold.raise_if_lost()
    assert KINDS[kind](other).acquire(blocking=False) is None


@each
def test_another_thread_releases_the_last_hold(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, decided, go_on = Memory(f"released elsewhere: {kind}"), threading.Event(), threading.Event()
    with Client(memory) as client, Client(memory) as other:
        lock = KINDS[kind](client)
        first = lock.acquire()
        drop = Entries.drop

        def slow(entries: Entries, entry: Entry) -> None:
            decided.set()
            assert go_on.wait(SOON)
            drop(entries, entry)

        monkeypatch.setattr(Entries, "drop", slow)
        thread = threading.Thread(target=first.release)
        thread.start()
        assert decided.wait(SOON)  # it is the last hold: the lease will be released
        threading.Timer(0.1, go_on.set).start()
        with lock as hold:
            thread.join(SOON)
            check_held(hold, other, kind)
        assert not lock.owned()
        check_held(KINDS[kind](other).acquire(blocking=False), client, kind)


@each
def test_a_signal_handler_releases_the_last_hold(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(f"released by a handler: {kind}")
    with Client(memory) as client, Client(memory) as other:
        lock = KINDS[kind](client)
        first = lock.acquire()
        handle = Entry.handle

        def interrupted(entry: Entry) -> Any:
            first.release()
            return handle(entry)

        monkeypatch.setattr(Entry, "handle", interrupted)
        hold = lock.acquire()
        monkeypatch.undo()
        check_held(hold, other, kind)
        hold.release()
        check_held(KINDS[kind](other).acquire(blocking=False), client, kind)
