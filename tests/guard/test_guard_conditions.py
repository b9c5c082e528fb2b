"""The condition of a fenced update, as a user writes it."""

import sqlite3
from contextlib import closing

import pytest

from leasehold.guards import Stale, sql


def test_none_stands_for_null() -> None:
    with closing(sqlite3.connect(":memory:")) as stock:
        stock.execute("CREATE TABLE stock (item INTEGER PRIMARY KEY, n INTEGER, fence INTEGER NOT NULL DEFAULT 0)")
        stock.execute("INSERT INTO stock (item) VALUES (42), (43)")
        assert sql.update(stock, "stock", {"n": 1}, where={"n": None, "item": 42}, token=7) == 1
        assert stock.execute("SELECT * FROM stock").fetchall() == [(42, 1, 7), (43, None, 0)]
        assert sql.update(stock, "stock", {"n": None}, where={"item": 42}, token=8) == 1
        with pytest.raises(Stale):
            sql.update(stock, "stock", {"n": 2}, where={"n": None, "item": 42}, token=7)
