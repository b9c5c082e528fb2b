"""Examples of the documentation that could run and still mislead: what they print, keep and name is checked, too."""

from __future__ import annotations

import logging
import re
import sqlite3
from pathlib import Path

import pytest

from leasehold import Client
from leasehold.stores.zookeeper.store import ZooKeeperStore

DOCS = Path(__file__).parents[2] / "docs"
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def example(page: str, part: str) -> str:
    """Return the only example of a page that contains a text."""
    (found,) = [code for code in PYTHON.findall((DOCS / page).read_text(encoding="utf-8")) if part in code]
    return found


def run(code: str) -> None:
    exec(compile(code, "docs", "exec"), {"__name__": "docs"})


def test_the_first_example_of_waiting_releases_what_it_acquires(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "leasehold"):
        run(example("guide.md", "acquire(blocking=False)  # tries once"))
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == ["mine"] * 3
    assert caplog.messages == []


def test_the_tutorial_leaves_no_hold_to_the_end_of_its_client(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "leasehold"):
        run(example("tutorial.md", "busy, held by"))
    assert caplog.messages == []


@pytest.mark.parametrize("page", ["guide.md", "tutorial.md"])
def test_a_guarded_write_is_still_there_in_a_new_connection(page: str, tmp_path: Path) -> None:
    code = example(page, 'sqlite3.connect(":memory:")')
    file = tmp_path / "shop.db"
    run(code.replace('sqlite3.connect(":memory:")', f"sqlite3.connect({str(file)!r})"))
    with sqlite3.connect(file) as shop:
        assert shop.execute("SELECT on_hand FROM stock").fetchall() == [(9,)]
    shop.close()


def test_a_leadership_that_was_resigned_is_not_held_as_the_table_for_curator_says() -> None:
    page = (DOCS / "from-curator.md").read_text(encoding="utf-8")
    assert "| `hasLeadership()` | `leadership.held`," in page
    with Client.from_url("memory:") as locks:
        election = locks.election("scheduler")
        leadership = election.campaign()
        assert leadership is not None
        assert leadership.held
        election.resign()
        assert (leadership.held, leadership.lost) == (False, False)


def test_the_two_blocks_for_curator_lock_the_same_node() -> None:
    page = (DOCS / "from-curator.md").read_text(encoding="utf-8")
    java = re.search(r'InterProcessMutex\(client, "([^"]+)"\)', page)
    python = re.search(r'from_url\("(zookeeper://[^"]+)"\).*?rlock\("([^"]+)"\)', page, re.DOTALL)
    assert java is not None
    assert python is not None
    with Client.from_url(python[1]) as locks:  # nothing is sent
        assert isinstance(locks.store, ZooKeeperStore)
        assert locks.store._paths.lock(python[2]) == java[1]
