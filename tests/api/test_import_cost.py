"""A program imports what it uses: the package costs next to nothing, a client does not bring what it is not asked for.

Counted in modules, which a busy machine cannot disturb; ``lab/src/leasehold_lab/bench/start.py`` measures the time.
"""

from __future__ import annotations

import copy
import inspect
import os
import pickle
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

import leasehold
from leasehold_lab.bench.start import measure
from leasehold_lab.servers import RedisServer

MOST = 2
"""Modules of the package that ``import leasehold`` may bring: itself and its exceptions."""

MOST_OF_A_CLIENT = 51
"""Modules of the package that ``from leasehold import Client`` may bring."""

MOST_OF_A_LOCK_ON_REDIS = 86
"""Modules of the package that a first lock on a server of Redis may bring, with those of its client."""

UNUSED = (
    *("asyncio", "ssl", "json", "dataclasses"),
    *(
        "redis",
        "hiredis",
        "psycopg",
        "psycopg_pool",
        "pymysql",
        "asyncmy",
        "kazoo",
        "hazelcast",
        "h11",
        "sqlite3",
        "click",
    ),
    *("leasehold.cli", "leasehold.guards", "leasehold.postgres", "leasehold.tables", "leasehold.testing"),
)

STORES = ("memory", "sqlite", "redis", "etcd", "postgres", "mysql", "zookeeper", "hazelcast", "_sql", "_common")

PRIMITIVES = (
    *("coordination", "values", "calls.once", "calls.scheduled", "calls.synchronized"),
    *("locks.multi_lock", "locks.multi_hold", "locks.rw_lock", "locks.semaphore"),
)


def run(code: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def imported_by(statement: str) -> set[str]:
    return set(run(f"import sys\n{statement}\nprint(*sys.modules)").split())


def ours(modules: set[str]) -> set[str]:
    return {name for name in modules if name.partition(".")[0] == "leasehold"}


def of(modules: set[str], *parts: str) -> set[str]:
    return {name for name in modules for part in parts if name == part or name.startswith(f"{part}.")}


def test_the_package_brings_its_exceptions_alone() -> None:
    found = imported_by("import leasehold")
    assert len(ours(found)) <= MOST, ours(found)
    assert not of(found, *UNUSED)


def test_a_client_brings_its_locks_alone() -> None:
    found = imported_by("from leasehold import AsyncClient, Client")
    assert len(ours(found)) <= MOST_OF_A_CLIENT, ours(found)
    assert not of(found, *UNUSED[4:])
    assert not of(found, *(f"leasehold.stores.{store}" for store in STORES))
    assert not of(found, *(f"leasehold.primitives.{part}" for part in PRIMITIVES))
    assert of(found, "leasehold.observability") == {"leasehold.observability", "leasehold.observability.log"}
    assert not {name for name in found if "doctor" in name}


URLS = (
    *("redis://h", "redis+sentinel://h,i,j/m", "redis+cluster://h", "redlock://h,i,j", "sqlite:/tmp/locks.db"),
    *("postgresql://u:p@h/d", "mysql://u:p@h/d", "etcd://h", "zookeeper://h", "hazelcast://h"),
)


@pytest.mark.parametrize("url", URLS)
def test_a_client_brings_no_doctor(url: str) -> None:
    found = imported_by(f"from leasehold import Client\nClient.from_url({url!r}).close()")
    assert of(found, "leasehold.stores")
    assert not {name for name in found if "doctor" in name}


USE = """
def use(client):
    import threading
    def contend():
        client.lock("a").acquire().release()
    with client.lock("a") as hold:
        waiter = threading.Thread(target=contend)
        waiter.start()
        hold.renew()
        try:
            client.lock("a", timeout=0.05).acquire()
        except leasehold.AcquireTimeout:
            pass
    waiter.join()
    with client.rlock("b", fair=True):
        client.inspect("b")
"""

SCRIPT = f"""
import os, sys, threading
import leasehold
{USE}
client, in_child = (leasehold.Client.from_url(sys.argv[1]) for _ in range(2))
before = set(sys.modules)
use(client)
client.close()
if hasattr(os, "fork"):
    sys.stdout.flush()
    if not (child := os.fork()):
        use(in_child)
        in_child.close()
        print(*sorted(set(sys.modules) - before), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
print(*sorted(set(sys.modules) - before))
"""


@pytest.mark.parametrize("url", ["memory:", "sqlite:{}/locks.db"], ids=["memory", "sqlite"])
def test_a_client_that_is_made_imports_nothing_more(url: str, tmp_path: Path) -> None:
    """Not at the first acquire, in a signal handler, in a forked child, nor when it closes."""
    assert run(SCRIPT, url.format(tmp_path)).split() == []


LOOKED_UP = {"encodings.idna", "stringprep"}
"""Python's own, at the first look-up of a host name."""


def test_nor_does_one_of_redis(redis_server: RedisServer) -> None:
    assert set(run(SCRIPT, redis_server.url).split()) <= LOOKED_UP


def test_nor_does_one_whose_rights_are_checked_at_the_first_acquire() -> None:
    with RedisServer() as server:
        server.command("ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all")
        brought = set(run(SCRIPT, server.url.replace("redis://", "redis://app:pw@")).split())
    assert brought <= LOOKED_UP


def test_a_lock_on_redis_brings_what_its_server_needs(redis_server: RedisServer) -> None:
    """Not what Sentinel, a cluster or Redlock needs, nor the doctor; it brings redis-py, whose own lock does, too."""
    found = imported_by(
        f"import leasehold\nwith leasehold.Client.from_url({redis_server.url!r}) as c, c.lock('a'): pass"
    )
    assert len(ours(found)) <= MOST_OF_A_LOCK_ON_REDIS, sorted(ours(found))
    unused = ("doctor", "sentinel", "cluster", "redlock")
    assert not of(found, *(f"leasehold.stores.redis.{part}" for part in unused))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_of_a_used_client_imports_nothing(tmp_path: Path) -> None:
    code = f"""
import os, sys, threading
import leasehold
{USE}
client = leasehold.Client.from_url(sys.argv[1])
use(client)
before = set(sys.modules)
if not (child := os.fork()):
    use(client)
    client.close()
    print(*sorted(set(sys.modules) - before), flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""
    assert run(code, f"sqlite:{tmp_path}/locks.db").split() == []


def test_threads_may_use_different_primitives_for_the_first_time_at_once() -> None:
    code = """if True:
        import sys, threading
        import leasehold
        sys.setswitchinterval(1e-6)
        start, failed = threading.Barrier(6), []
        makes = (
            lambda locks: locks.semaphore("a", 2), lambda locks: locks.election("a"),
            lambda locks: locks.rw_lock("a"),
            lambda locks: locks.barrier("a", 2), lambda locks: locks.multi_lock(["a"]),
            lambda locks: locks.latch("a", 2),
        )
        def work(make):
            try:
                start.wait()
                with leasehold.Client.from_url("memory:") as locks:
                    make(locks)
                    leasehold.Semaphore, leasehold.AsyncElection, leasehold.Versioned
                    with locks.semaphore("b", 6):
                        pass
            except BaseException as error:
                failed.append(error)
        threads = [threading.Thread(target=work, args=(make,)) for make in makes]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert not failed, failed
        """
    run(code)


def test_each_public_name_is_there_and_of_its_module() -> None:
    for name in leasehold.__all__:
        thing = getattr(leasehold, name)
        assert thing.__name__ == name
        assert getattr(sys.modules[thing.__module__], name) is thing


def test_a_star_import_and_dir_give_all_names() -> None:
    found = run("from leasehold import *; import leasehold; print(*(set(leasehold.__all__) - set(globals())))")
    assert found.split() == []
    assert set(run("import leasehold; print(*dir(leasehold))").split()) >= {*leasehold.__all__, "__name__"}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'leasehold' has no attribute 'Lok'"):
        leasehold.Lok  # type: ignore[attr-defined] # noqa: B018
    run("import leasehold\ntry: from leasehold import permits_of\nexcept ImportError: pass\nelse: raise SystemExit(1)")


def test_modules_of_observers_and_of_stores_need_no_import_of_their_own() -> None:
    run("import leasehold; leasehold.events.Acquired; leasehold.store_api.Store")


@pytest.mark.parametrize("name", sorted({*leasehold.__all__} - {"Versioned"}))  # a generic NamedTuple hides its hints
def test_type_hints_of_public_functions(name: str) -> None:
    for function in functions(getattr(leasehold, name)):
        typing.get_type_hints(function)


def functions(cls: object) -> Iterator[object]:
    if not isinstance(cls, type):
        yield cls
        return
    for base in cls.__mro__:
        for member in vars(base).values() if base.__module__.startswith("leasehold") else ():
            function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            if inspect.isfunction(function):
                yield function


def test_type_hints_are_the_public_classes() -> None:
    code = "import typing, leasehold; print(typing.get_type_hints(leasehold.Client.semaphore)['return'])"
    assert run(code).strip() == str(leasehold.Semaphore)


def test_what_a_program_pickles_is_loaded_without_the_client() -> None:
    lost = leasehold.LeaseLost("gone", name="a", token=7)
    value = leasehold.Versioned("x", 3)
    code = "import pickle, sys; print(*pickle.loads(bytes.fromhex(sys.argv[1])))"
    assert run(code, pickle.dumps([value]).hex()).strip() == str(value)
    assert copy.copy(lost).token == pickle.loads(pickle.dumps(lost)).token == 7


def test_the_benchmark_measures_each_row() -> None:
    assert {"import leasehold", "from leasehold import Client"} <= measure(turns=1).keys()
