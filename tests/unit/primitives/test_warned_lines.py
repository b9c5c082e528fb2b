"""Warnings point at the line of the user's code that made the call, not at a file of the library."""

from __future__ import annotations

import asyncio
import re
import textwrap
import warnings
from pathlib import Path
from typing import Any

import pytest

from leasehold import AsyncClient, Client
from leasehold_lab.runtimes.harnesses import Harness
from support.flavors import both

IN_A_LOOP = {
    "with a lock": """
        with client.lock("a"):  # warns
            pass
        """,
    "acquire and release": """
        lock = client.lock("a")
        lock.acquire()  # warns
        lock.locked()  # warns
        lock.release()  # warns
        """,
    "a hold": """
        hold = client.lock("a").acquire()  # warns
        hold.renew()  # warns
        hold.release()  # warns
        """,
    "a hold that is entered": """
        with client.lock("a").acquire():  # warns
            pass
        """,
    "an exit stack": """
        with contextlib.ExitStack() as stack:  # warns
            stack.enter_context(client.lock("a"))  # warns
        """,
    "a decorated function": """
        @client.lock("a")
        def work():
            pass

        work()  # warns
        """,
    "synchronized": """
        @client.synchronized("a:{number}")
        def work(number):
            pass

        work(7)  # warns
        """,
    "rlock": """
        with client.rlock("a") as hold:  # warns
            client.rlock("a").acquire().release()  # warns
        """,
    "rw_lock": """
        with client.rw_lock("a").reader():  # warns
            pass
        with client.rw_lock("a").writer():  # warns
            pass
        with client.rw_lock("a").upgradeable() as hold:  # warns
            with hold.upgrade():  # warns
                pass
        """,
    "semaphore": """
        with client.semaphore("a", 3).permits(2):  # warns
            client.semaphore("a", 3).available()  # warns
        """,
    "multi_lock": """
        with client.multi_lock(["a", "b"]) as hold:  # warns
            hold.renew()  # warns
        """,
    "election": """
        leadership = client.election("a").campaign()  # warns
        leadership.proclaim("me")  # warns
        leadership.release()  # warns
        """,
    "latch": """
        latch = client.latch("a", 1)
        latch.count_down()  # warns
        latch.wait()  # warns
        """,
    "barrier": """
        client.barrier("a", 1).wait()  # warns
        """,
    "versioned": """
        cell = client.versioned("a")
        cell.put(1)  # warns
        cell.get()  # warns
        cell.update(lambda value: value + 1)  # warns
        """,
    "once": """
        client.once("a", ttl=60).run(lambda: 1)  # warns
        """,
    "cached": """
        client.cached("a", 60, lambda: 1).get()  # warns
        """,
    "scheduled": """
        client.scheduled("a", at_least=1, at_most=10).run(lambda: 1)  # warns
        """,
    "the client": """
        client.holds()  # warns
        client.inspect("a")  # warns
        client.force_release("a", 7)  # warns
        client.diagnose()  # warns
        """,
}
"""Programs for an event loop; each marked line warns, and no other."""


def warned(program: str, path: Path, match: str, client: object) -> tuple[set[int], set[int]]:
    """Run a program in a coroutine; return the numbers of the lines that should warn, and of those that did."""
    code = "import contextlib\n\nasync def main(client):\n" + textwrap.indent(textwrap.dedent(program), "    ")
    path.write_text(code)
    space: dict[str, Any] = {}
    exec(compile(code, str(path), "exec"), space)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(space["main"](client))
    ours = [each for each in caught if re.search(match, str(each.message))]
    assert {each.filename for each in ours} == {str(path)}
    assert {each.category for each in ours} == {RuntimeWarning}
    expected = {number for number, line in enumerate(code.splitlines(), start=1) if "# warns" in line}
    return expected, {each.lineno for each in ours}


@pytest.mark.parametrize("what", IN_A_LOOP)
def test_a_blocking_call_in_an_event_loop_is_warned_of_at_its_line(what: str, tmp_path: Path) -> None:
    with Client.from_url("memory:", namespace=what) as client:
        expected, found = warned(IN_A_LOOP[what], tmp_path / "program.py", "running event loop", client)
    assert found == expected


NESTED = {
    "with in with": """
        ASYNC with client.lock("a"):
            ASYNC with client.lock("a"):  # warns
                pass
        """,
    "twice through one object": """
        lock = client.lock("a", fair=True)
        first = AWAIT lock.acquire()
        AWAIT lock.acquire()  # warns
        """,
    "through two objects, of which the first is gone": """
        first = AWAIT client.lock("a").acquire()
        AWAIT client.lock("a").acquire()  # warns
        """,
    "decorated functions": """
        @client.lock("a")
        ASYNC def outer():
            AWAIT inner()  # warns

        @client.lock("a")
        ASYNC def inner():
            pass

        AWAIT outer()
        """,
    "a fixed lease": """
        ASYNC with client.lock("a", renew=False):
            AWAIT client.lock("a").acquire()  # warns
        """,
    "a fixed lease, of which the lock object is kept": """
        lock = client.lock("a", renew=False)
        AWAIT lock.acquire()
        AWAIT client.lock("a").acquire()  # warns
        """,
    "rlock in lock": """
        ASYNC with client.lock("a"):
            AWAIT client.rlock("a").acquire()  # warns
        """,
    "lock in rlock": """
        ASYNC with client.rlock("a"):
            AWAIT client.lock("a").acquire()  # warns
        """,
    "multi_lock in lock": """
        ASYNC with client.lock("b"):
            AWAIT client.multi_lock(["a", "b"]).acquire()  # warns
        """,
    "lock in multi_lock": """
        ASYNC with client.multi_lock(["a", "b"]):
            AWAIT client.lock("b").acquire()  # warns
        """,
    "lock in multi_lock, of which only the hold is kept": """
        first = AWAIT client.multi_lock(["a", "b"]).acquire()
        AWAIT client.lock("b").acquire()  # warns
        """,
    "rlock in multi_lock, of which only the hold is kept": """
        first = AWAIT client.multi_lock(["a"]).acquire()
        AWAIT client.rlock("a").acquire()  # warns
        """,
}
"""Programs whose marked line waits for a hold of its own thread or task; nothing else would end that."""

FLAVORS = {"blocking": ("", ""), "asyncio": ("async ", "await ")}


class Stop(Exception):
    """Ends a program at its warning, since it would wait for ever afterwards."""


@pytest.mark.parametrize("flavor", FLAVORS)
@pytest.mark.parametrize("what", NESTED)
def test_a_nested_acquire_is_warned_of_at_its_line(
    what: str, flavor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, path = list[tuple[str, str, int]](), tmp_path / "program.py"
    asynchronous, awaits = FLAVORS[flavor]
    code = f"{asynchronous}def main(client):\n" + textwrap.indent(textwrap.dedent(NESTED[what]), "    ")
    code = code.replace("ASYNC ", asynchronous).replace("AWAIT ", awaits)
    path.write_text(code)
    space: dict[str, Any] = {}
    exec(compile(code, str(path), "exec"), space)

    def show(message: object, category: object, filename: str, line: int, *_: object) -> None:
        found.append((str(message), filename, line))
        raise Stop

    async def run() -> None:
        async with AsyncClient.from_url("memory:", namespace=f"{what} asyncio") as client:
            await space["main"](client)

    def run_blocking() -> None:
        with Client.from_url("memory:", namespace=what) as client:
            space["main"](client)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", show)
        with pytest.raises(Stop):
            asyncio.run(run()) if asynchronous else run_blocking()
    line = next(number for number, text in enumerate(code.splitlines(), start=1) if "# warns" in text)
    ((message, filename, number),) = found
    assert (filename, number) == (str(path), line)
    assert "holds lock " in message
    assert "use rlock" in message


@both
def test_a_nested_acquire_raises_if_the_lock_says_so_and_leaves_nothing(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client()
        async with client.lock("nested"):
            for timeout in (None, 5):
                with pytest.raises(RuntimeError, match="holds lock 'nested' already"):
                    await client.lock("nested", nested="raise").acquire(timeout=timeout)
        for make in (lambda: client.lock("nested"), lambda: client.multi_lock(["another", "nested"])):
            hold = await make().acquire()
            assert hold is not None
            for timeout in (5, None):
                with pytest.raises(RuntimeError, match="holds lock 'nested' already"):
                    await client.lock("nested", nested="raise").acquire(timeout=timeout)
            await hold.release()
        async with client.lock("nested"):
            assert await client.lock("nested", nested="raise").acquire(blocking=False) is None
            info = await client.inspect("nested")
            assert info is not None
            assert not info.waiters
        assert await client.inspect("nested") is None

    harness.run(body)


@both
def test_a_wait_for_others_is_no_nested_acquire(harness: Harness) -> None:
    """Neither is a wait that ends by itself refused, nor one for another client, nor for another thread or task."""

    async def body(harness: Harness) -> None:
        client, other = harness.client(), harness.client()
        hold = await client.lock("other").acquire()
        assert hold is not None
        assert await client.lock("other").acquire(timeout=0.02) is None
        waiting = [
            harness.spawn(lambda: client.lock("other", nested="raise").acquire(timeout=0.05)),
            harness.spawn(lambda: other.lock("other", nested="raise").acquire(timeout=0.05)),
        ]
        for each in waiting:
            assert await each.result() is None
        await hold.release()
        kept = [await client.lock("once in 0.1 s", lease=0.1, renew=False).acquire() for _ in range(3)]
        assert None not in kept

    harness.run(body)


@pytest.mark.parametrize("make", [Client, AsyncClient])
def test_another_value_of_nested_is_refused(make: type[Client] | type[AsyncClient]) -> None:
    with pytest.raises(ValueError, match="nested must be 'warn' or 'raise', not 'allow'"):
        make.from_url("memory:").lock("a", nested="allow")  # type: ignore[arg-type]
