"""Sell what there is, and no more: a lock, and a fencing token in the UPDATE, for a stock in a database.

Four processes sell 20 items: first with nothing between them, then under a lock. The first of them has bad luck: it is
held up in the middle of a sale until its lease is over. Its late UPDATE has an old token, so the database refuses it.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from side_by_side import arguments, client, join, note, notes, start, verdict

from leasehold import LeaseLost

ITEMS = 20
PROCESSES = 4
LEASE = 0.5

SELL = "UPDATE stock SET left = :left, fence = :token WHERE id = 42 AND fence <= :token"


def sell(database: sqlite3.Connection, token: int, seconds: float) -> tuple[bool, int]:
    """Read, think, write; return whether one was sold, and how many there were."""
    (left,) = database.execute("SELECT left FROM stock WHERE id = 42").fetchone()
    if left == 0:
        return False, 0
    time.sleep(seconds)
    return database.execute(SELL, {"left": left - 1, "token": token}).rowcount == 1, left


def without_lock(number: int, stock: Path, log: Path) -> None:
    """Sell until nothing seems to be left."""
    with closing(connect(stock)) as database:
        left = ITEMS
        while left:
            sold, left = sell(database, 0, 0.005)
            if sold:
                note(log, seller=number)


def with_lock(number: int, stock: Path, log: Path, place: argparse.Namespace) -> None:
    """Sell until nothing is left, one at a time; the first sale of the first process takes too long."""
    unlucky = number == 1
    while not unlucky and not notes(log):  # the others come when the first is at it
        time.sleep(0.01)
    with closing(connect(stock)) as database, client(place) as locks:
        left = ITEMS
        while left:
            try:
                with locks.lock("stock:42", lease=LEASE, renew=not unlucky) as hold:
                    if unlucky:
                        note(log, held_up=number)
                    sold, left = sell(database, hold.token, 3 * LEASE if unlucky else 0.005)
                    if sold:
                        note(log, seller=number)
                    elif left:
                        note(log, refused=number, token=hold.token)
            except LeaseLost as error:
                print(f"process {number}: {error}")
                unlucky = False


def connect(stock: Path) -> sqlite3.Connection:
    """Open the shop's database; each statement is a transaction of its own."""
    return sqlite3.connect(stock, isolation_level=None, timeout=30)


def fill(stock: Path) -> None:
    """Put the items on the shelf."""
    with closing(connect(stock)) as database:
        database.execute("CREATE TABLE stock (id INTEGER PRIMARY KEY, left INTEGER, fence INTEGER)")
        database.execute("INSERT INTO stock VALUES (42, ?, 0)", (ITEMS,))


def main() -> int:
    """Sell without a lock and with it, and compare."""
    place = arguments(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        bare, locked = Path(folder, "bare"), Path(folder, "locked")
        fill(bare.with_suffix(".db"))
        join(start(PROCESSES, without_lock, bare.with_suffix(".db"), bare))
        fill(locked.with_suffix(".db"))
        join(start(PROCESSES, with_lock, locked.with_suffix(".db"), locked, place))
        sold, facts = len(notes(bare)), notes(locked)
    print(f"without a lock: {sold} sales of {ITEMS} items")
    refused = [fact for fact in facts if "refused" in fact]
    sales = len([fact for fact in facts if "seller" in fact])
    print(f"with a lock:    {sales} sales of {ITEMS} items, {len(refused)} late write refused by its token")
    broken = [] if sales == ITEMS else [f"{sales} sales of {ITEMS} items"]
    broken += [] if refused else ["the late write was not refused"]
    return verdict(broken, "every item was sold once")


if __name__ == "__main__":
    sys.exit(main())
