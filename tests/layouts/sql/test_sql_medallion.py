"""Session locks shared with Medallion (.NET): its keys by vectors, and its statements on real servers.

No .NET runs here: the vectors are those of its own tests, and of its documented rule.
"""

from __future__ import annotations

import secrets
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from sql_peers import KINDS, Database

from leasehold import tables
from leasehold.layouts.sql.medallion import mysql_name, postgres_key
from support.flavors import both
from support.patience import until_in

SOON = 0.5
"""Seconds of a message, and of a busy machine: both wait in the server's queue."""

PAIRS = {
    "": (0x7FFFFFFF, -1),
    "\0" * 9: (0, 0),
    "foo": (-843088897, -1),
    "00000003,ffffffff": (3, -1),
    "FFFFFFFF,80000000": (-1, -(1 << 31)),
}
"""Name to two numbers of 32 bits."""

SINGLES = {
    "漢" * 18: -5707277204051710361,
    "MyLockName": 4062898426641073528,
    "0000000000000001": 1,
    "8000000000000000": -(1 << 63),
    "ffffffffffffffff": -1,
}
"""Name to one number of 64 bits."""

NAMES = {
    "": "__empty__p6ad62yppho33ytkibum5wbqhqvbcsxa",
    "abc": "abc",
    "ABC": "abczj4qr6tvn4a3kmgq4bukhowqyfrlxsb3",
    "\\": "\\",
    "a" * 64: "a" * 64,
    "\\" * 64: "\\" * 64,
    "x" * 65: "x" * 32 + "gkd2zq6c6ey6mhs45clqg7vij6ycgo43",
}
"""Name to that of the lock on MySQL."""


@pytest.mark.parametrize("name", PAIRS)
def test_a_short_name_and_two_numbers_are_a_pair(name):
    number, pair = postgres_key(name)
    assert pair
    assert halves(number) == PAIRS[name]


@pytest.mark.parametrize("name", SINGLES)
def test_another_name_is_one_number(name):
    assert postgres_key(name) == (SINGLES[name], False)


def test_short_names_never_share_a_key():
    names = ["", *(chr(character) * length for character in range(1, 128) for length in range(1, 10))]
    assert len({postgres_key(name) for name in names}) == len(names)


@pytest.mark.parametrize("name", ["0000000g00000000", "00000000;00000000", "+0000001 0000001", "00000000,0000000é"])
def test_what_only_resembles_numbers_is_hashed(name):
    number, pair = postgres_key(name)
    assert not pair
    assert abs(number) > 1 << 32


@pytest.mark.parametrize("name", NAMES)
def test_the_name_on_mysql(name):
    assert mysql_name(name) == NAMES[name]


@pytest.mark.parametrize("name", ["Σ" * 9, "😀" * 33, "İ" * 65, "é" * 65])
def test_a_name_on_mysql_has_64_characters_of_16_bits_at_most(name):
    found = mysql_name(name)
    assert found != name
    assert len(found.encode("utf-16-le")) <= 128
    assert found[:1] in "σ😀İé"


# --- on real servers ---------------------------------------------------------------------------------------------


class Medallion:
    """One connection of Medallion, with the statements that its source has."""

    def __init__(self, database: Database, name: str) -> None:
        self._connection = database.server.connect()
        self.of_pairs = False
        if database.kind == "postgres":
            number, self.of_pairs = postgres_key(name)
            self._args: tuple[object, ...] = halves(number) if self.of_pairs else (number,)
            holes = ", ".join(["%s::int"] * 2 if self.of_pairs else ["%s::bigint"])
            self._try = f"SELECT pg_catalog.pg_try_advisory_lock({holes})"
            self._wait = f"SELECT pg_catalog.pg_advisory_lock({holes}) IS NOT NULL"
            self._free = f"SELECT pg_catalog.pg_advisory_unlock({holes})"
        else:
            self._args = (mysql_name(name),)
            self._try, self._wait = "SELECT GET_LOCK(%s, 0)", "SELECT GET_LOCK(%s, 60)"
            self._free = "SELECT RELEASE_LOCK(%s)"

    def lock(self, *, wait: bool = False) -> bool:
        return self._ask(self._wait if wait else self._try)

    def unlock(self) -> bool:
        return self._ask(self._free)

    def close(self) -> None:
        self._connection.close()

    def _ask(self, text: str) -> bool:
        with self._connection.cursor() as cursor:
            cursor.execute(text, self._args)
            (row,) = cursor.fetchall()
        return bool(row[0])


def halves(number: int) -> tuple[int, int]:
    low = number & 0xFFFFFFFF
    return number >> 32, low - (1 << 32) if low >> 31 else low


@pytest.fixture(params=KINDS)
def database(request):
    request.node.user_properties.append((f"store:{request.param}", True))
    found = Database(request.param, request.getfixturevalue(f"{request.param}_server"))
    tables.create(found.server.url)
    return found


FORMS = {
    "short": lambda: secrets.token_hex(4),
    "long": lambda: f"Stock of {secrets.token_hex(16)}",
    "two-numbers": lambda: f"{secrets.token_hex(4)},{secrets.token_hex(4)}",
    "a-number": lambda: secrets.token_hex(8),
}


@pytest.fixture(params=FORMS)
def name(request):
    return FORMS[request.param]()


@pytest.fixture
def url(database):
    return database.url("medallion", mode="session")


@pytest.fixture
def peer(database, name):
    with closing(Medallion(database, name)) as made:
        yield made


@both
def test_each_side_keeps_the_other_out(url, database, peer, name, harness):
    async def body(harness):
        async with harness.client(url) as locks:
            if database.kind == "postgres":
                assert peer.of_pairs == (len(name) in (8, 17))
            for _ in range(2):
                async with locks.lock(name, lease=10) as hold:
                    assert not peer.lock()
                    (info,) = (await locks.inspect(name)).holders
                    assert info.token == hold.token
                assert peer.lock()
                assert await locks.lock(name, lease=10).acquire(blocking=False) is None
                assert await locks.lock(name, lease=10).acquire(timeout=0.3) is None
                assert peer.unlock()

    harness.run(body)


@both
def test_each_side_is_served_when_the_other_releases(url, peer, name, harness):
    async def body(harness):
        async with harness.client(url) as locks:
            assert peer.lock()
            mine = harness.spawn(lambda: locks.lock(name, lease=10).acquire(timeout=20))
            await harness.sleep(0.4)
            start = harness.now()
            assert peer.unlock()
            hold = await mine.result()
            assert harness.now() - start < SOON
            with ThreadPoolExecutor(1) as thread:
                theirs = thread.submit(lambda: peer.lock(wait=True))
                await harness.sleep(0.4)
                assert not theirs.done()
                await hold.release()
                assert theirs.result(SOON)
            assert peer.unlock()

    harness.run(body)


@both
def test_a_holder_of_either_side_that_dies_is_followed_at_once(url, database, name, harness):
    async def body(harness):
        async with harness.client(url) as locks:
            dies = Medallion(database, name)
            assert dies.lock()
            mine = harness.spawn(lambda: locks.lock(name, lease=10).acquire(timeout=20))
            await harness.sleep(0.4)
            start = harness.now()
            dies.close()
            hold = await mine.result()
            assert harness.now() - start < SOON
            assert await locks.force_release(name, hold.token)
            with closing(Medallion(database, name)) as peer:
                await until_in(harness, peer.lock)
                assert peer.unlock()

    harness.run(body)


@both
def test_a_namespace_precedes_the_name(database, url, harness):
    name = secrets.token_hex(8)

    async def body(harness):
        async with harness.client(url, namespace="billing") as locks, locks.lock(name, lease=10):
            with closing(Medallion(database, f"billing:{name}")) as peer:
                assert not peer.lock()

    harness.run(body)
