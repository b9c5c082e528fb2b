"""The end of the interpreter, Ctrl-C, and what must not be copied."""

import copy
import multiprocessing
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from leasehold import AsyncClient, AsyncHold, Client, LeaseLost
from leasehold._engine.lease import LeaseHandle
from leasehold._validate import LONGEST_LEASE
from leasehold.primitives.locks.lock import AsyncLock
from leasehold.stores.memory import Memory


def run(code: str, *, code_expected: int = 0, within: float = 10.0) -> str:
    """Run a script in an interpreter of its own; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=within,
        check=False,
    )
    assert done.returncode == code_expected, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert "Exception ignored" not in done.stderr, done.stderr
    return done.stdout


REPORT = """
    import atexit, os
    calls = []
    atexit.register(lambda: os.write(1, ",".join(calls).encode()))  # runs after leasehold's own, which comes later
    from leasehold import Client
    from leasehold.stores.memory import Memory
    from leasehold_lab.faulty_store import Faulty
    def plan(call):
        calls.append(call.method)
    client = Client(Faulty(Memory(), plan))
"""


@pytest.mark.parametrize(
    "held",
    [
        "hold = client.lock('a').acquire()",
        "client.lock('a').acquire()",
        "lock = client.rlock('a'); lock.acquire(); lock.acquire()",
        "lock = client.lock('a'); lock.__enter__()",
        "lock = client.lock('a'); del client; hold = lock.acquire()",
        "hold = client.lock('a').acquire(); del client",
        "client.lock('a').acquire(); del client",
    ],
)
def test_what_is_held_when_the_interpreter_ends_is_released_at_once(held: str) -> None:
    start = time.monotonic()
    assert run(textwrap.dedent(REPORT) + held) == "try_acquire,release"
    assert time.monotonic() - start < 8.0


def test_two_locks_of_a_client_that_is_gone_are_released_when_the_interpreter_ends() -> None:
    code = "one, two = client.lock('a'), client.rlock('b'); del client; one.acquire(); two.acquire()"
    assert run(textwrap.dedent(REPORT) + code) == "try_acquire,try_acquire,release,release"


def test_an_interpreter_that_ends_while_a_daemon_thread_waits() -> None:
    code = """
    hold = client.lock('a').acquire()
    import threading, time
    for _ in range(3):
        threading.Thread(target=client.lock('a').acquire, daemon=True).start()
    time.sleep(0.3)
    """
    said = run(textwrap.dedent(REPORT) + textwrap.dedent(code))
    assert said.count("release") >= 1


def test_an_exit_inside_the_block_is_passed_on() -> None:
    said = run(textwrap.dedent(REPORT) + "with client.lock('a'):\n    raise SystemExit(7)", code_expected=7)
    assert said == "try_acquire,release"


def test_a_client_that_cannot_be_closed_keeps_no_other_from_it() -> None:
    code = """
    async def fail():
        raise ValueError("a mistake of the store")
    broken = [Client(Memory(f"broken {number}")) for number in range(5)]
    for each in broken:
        each.store.close = fail
    hold = client.lock('a').acquire()
    """
    assert run(textwrap.dedent(REPORT) + textwrap.dedent(code)) == "try_acquire,release"


def test_a_callback_that_exits_keeps_nothing_held_where_the_end_of_the_interpreter_refuses_threads() -> None:
    """As Python 3.12 does: each client calls its callbacks in the main thread then."""
    code = """
    import sys, threading
    def fails(thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")
    clients = [client, Client(Faulty(Memory("another"), plan))]
    holds = [each.lock(name).acquire() for each in clients for name in "ab"]
    for hold in holds:
        hold.on_lost(lambda error: sys.exit(3))
    threading.Thread.start = fails
    """
    said = run(textwrap.dedent(REPORT) + textwrap.dedent(code))
    assert said == ",".join(4 * ["try_acquire"] + 4 * ["release"])


def test_a_ctrl_c_while_one_client_closes_at_the_end_of_the_interpreter_keeps_no_lock_of_the_others_held() -> None:
    """Python reports it when all are closed."""
    code = """
    import signal
    def interrupted(call):
        calls.append(call.method)
        if calls.count("release") == 1:
            signal.raise_signal(signal.SIGINT)
    clients = [Client(Faulty(Memory(str(number)), interrupted)) for number in range(4)]
    holds = [each.lock("a").acquire() for each in clients]
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(REPORT) + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.stdout == ",".join(4 * ["try_acquire"] + 5 * ["release"]), "the interrupted one is sent again"
    assert done.stderr.count("KeyboardInterrupt") == 1


def test_an_asyncio_program_ends_without_a_word() -> None:
    run(
        """
        import asyncio
        from leasehold import AsyncClient
        async def main():
            client = AsyncClient.from_url("memory:")
            await client.lock("a").acquire()
            waiter = asyncio.ensure_future(client.lock("a").acquire())
            await asyncio.sleep(0.05)
        asyncio.run(main())
        """
    )


SLEEPER = """
    import sys, threading
    from leasehold import Client
    client = Client.from_url("memory:")
    other = Client.from_url("memory:")
    hold = other.lock("a").acquire()
    print("waiting", flush=True)
    try:
        client.lock("a").acquire()
    except KeyboardInterrupt:
        info = other.inspect("a")
        assert info.waiters == (), info
        hold.raise_if_lost()
        print("interrupted", flush=True)
        sys.exit(0)
"""


def test_ctrl_c_ends_a_wait_and_leaves_nothing() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SLEEPER)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "waiting\n"
    time.sleep(0.3)
    start = time.monotonic()
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=10)
    assert (child.returncode, out) == (0, "interrupted\n")
    assert err.count("\n") == err.count("its client was closed") == 1, "it still holds the other, and that is said"
    assert time.monotonic() - start < 5.0


def test_an_interrupt_between_the_grant_and_its_hold_leaves_no_lock_that_lives_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(self: AsyncLock, got: LeaseHandle) -> AsyncHold:
        assert got.lease.check_deadline(), "it was granted"
        raise KeyboardInterrupt

    with Client(Memory("interrupted")) as locks, Client(Memory("interrupted")) as others:
        with monkeypatch.context() as patched:
            patched.setattr(AsyncLock, "_taken", interrupted)
            with pytest.raises(KeyboardInterrupt):
                locks.lock("x", lease=1.5).acquire()
        assert others.lock("x").acquire(blocking=False) is None
        hold = others.lock("x").acquire(timeout=5)  # the watchdog finds that the hold is unreferenced, and releases
        assert hold is not None
        hold.release()


def test_holds_are_neither_copied_nor_pickled() -> None:
    with Client(Memory("copies")) as client, client.lock("a") as hold:
        for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="cannot be copied"):
                attempt(hold)
            with pytest.raises(TypeError, match="cannot be copied"):
                attempt(hold._core)


@pytest.mark.parametrize("attempt", [copy.copy, copy.deepcopy, pickle.dumps])
def test_clients_are_neither_copied_nor_pickled(attempt: Callable[[object], object]) -> None:
    with Client(Memory("copies")) as client:
        with pytest.raises(TypeError, match="client cannot be copied"):
            attempt(client)
        with pytest.raises(TypeError, match="Lock 'a' cannot be copied"):
            attempt(client.lock("a"))
    with pytest.raises(TypeError, match="make a new one there"):
        attempt(AsyncClient(Memory("copies")))


def test_errors_can_be_sent_to_another_process() -> None:
    error = LeaseLost("gone", name="a", owner="me", token=7, waited=1.5, held_by="you")
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), str(back), back.name, back.token, back.waited, back.held_by) == (
        LeaseLost,
        "gone",
        "a",
        7,
        1.5,
        "you",
    )


def in_spawned(queue: "multiprocessing.Queue[str]") -> None:
    with Client(Memory("spawned")) as client, client.lock("a") as hold:
        queue.put(hold.name)


def test_a_spawned_process_makes_its_own_client() -> None:
    context = multiprocessing.get_context("spawn")
    queue: multiprocessing.Queue[str] = context.Queue()
    process = context.Process(target=in_spawned, args=(queue,))
    process.start()
    assert queue.get(timeout=30) == "a"
    process.join(10)
    assert process.exitcode == 0
    queue.close()
    queue.join_thread()


def test_this_file_is_where_the_spawned_process_finds_it() -> None:
    assert Path(__file__).exists()
    assert LONGEST_LEASE > 0
