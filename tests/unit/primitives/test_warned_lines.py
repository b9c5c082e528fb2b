"""Warnings point at the line of the user's code that made the call, not at a file of the library."""

from __future__ import annotations

import asyncio
import re
import textwrap
import warnings
from pathlib import Path

import pytest

from leasehold import Client

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
    space: dict[str, object] = {}
    exec(compile(code, str(path), "exec"), space)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(space["main"](client))  # type: ignore[operator]
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
