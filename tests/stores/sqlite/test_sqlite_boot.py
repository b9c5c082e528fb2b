"""Boots, boot-time clocks and process ids, as the SQLite store sees them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlite_peers import Peer, client_on, fake_proc, linux, raw, root, run_python

from leasehold import Client, StoreUnavailable, Unsupported
from leasehold._model import Change
from leasehold._runtimes.base import finish
from leasehold.stores.sqlite.machine import Machine, Process


@linux
def test_new_boot_voids_all(path: Path, tmp_path: Path) -> None:
    with Client.from_url(f"sqlite:{path}") as before:
        held = before.lock("x", lease=600, lock_delay=500).acquire()
        assert held is not None
        writer = before.rw_lock("rw", lease=600).writer().acquire()
        assert writer is not None
        before.lock("broken", lock_delay=600).acquire()
        info = before.inspect("broken")
        assert info is not None
        before.force_release("broken", info.token)
        finish(before.store.compare_and_set("c", Change(b"kept", ttl=1000)))
        before._core._engine.store._close()  # type: ignore[attr-defined]  # power fails: nothing is released
        with client_on(path, fake_proc(tmp_path / "p", boot="another boot")) as after:
            assert after.holds() == []
            assert after.rw_lock("rw").writer().acquire(blocking=False) is not None
            for name in ("x", "broken"):
                hold = after.lock(name).acquire(blocking=False)
                assert hold is not None
                assert hold.token > held.token
            assert finish(after.store.compare_and_set("c", Change())).value == b"kept"


@linux
def test_another_boot_while_the_first_still_runs_is_refused(
    path: Path, tmp_path: Path, peers: Callable[..., Peer]
) -> None:
    peer = peers()
    token = peer.ask("take('x', lease=60)")
    other = fake_proc(tmp_path / "p", boot="a container with a boot id of its own")
    with client_on(path, other) as locks:
        with pytest.raises(StoreUnavailable, match="under another boot") as caught:
            locks.lock("x").acquire(timeout=0)
        assert not caught.value.unknown
        assert peer.ask("tell(holds['x'].renew)") == "ok"
        peer.process.kill()
        peer.process.wait()
        with locks.lock("x", timeout=0) as hold:
            assert hold.token > token


@linux
def test_a_process_that_waits_to_take_over_does_not_block_others(
    path: Path, tmp_path: Path, peers: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several may try it at once; one that waited with the file open would keep all of them out, for good."""
    in_use = peers()
    in_use.ask("take('x', lease=60)")
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if in_use.process.returncode is None:
            in_use.process.kill()
            in_use.process.wait()
            raw(path, "UPDATE host SET boot = 'a third'", exclusive=True)

    monkeypatch.setattr("leasehold.stores.sqlite.busy_wait.time.sleep", pause)
    with client_on(path, fake_proc(tmp_path / "p", boot="the next boot")) as locks, locks.lock("x", timeout=0):
        assert len(pauses) == 1


@linux
def test_many_start_after_a_boot(path: Path, tmp_path: Path, peers: Callable[..., Peer]) -> None:
    with Client.from_url(f"sqlite:{path}") as before, before.lock("x"):
        pass
    for boot in range(3):
        proc = fake_proc(tmp_path / f"p{boot}", boot=f"boot {boot}")
        crowd = [peers(proc) for _ in range(6)]
        for peer in crowd:
            assert peer.ask("'ready'") == "ready"
        for peer in crowd:
            peer.tell("take('y', timeout=20) and tell(holds['y'].release)")
        assert [peer.answer() for peer in crowd] == ["ok"] * 6
        for peer in crowd:
            peer.close()


@linux
def test_file_taken_over_is_noticed(path: Path, locks: Client) -> None:
    hold = locks.lock("x").acquire()
    assert hold is not None
    raw(path, "UPDATE host SET boot = 'of another machine'")
    with pytest.raises(Unsupported, match="taken over"):
        hold.renew()
    raw(path, "UPDATE host SET boot = ?", Machine().boot())
    hold.release()


@linux
def test_other_time_namespace_is_refused(path: Path, tmp_path: Path, locks: Client) -> None:
    proc = fake_proc(tmp_path / "p", offset=86400)
    with locks.lock("x"), client_on(path, proc) as others, pytest.raises(Unsupported, match="time namespace"):
        others.lock("x").acquire()
    assert locks.inspect("x") is None


@root
def test_real_time_namespace(path: Path, locks: Client) -> None:
    unshare = ("unshare", "--time", "--boottime", "1000", "--fork")
    if subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("time namespaces cannot be made here")
    code = """
        import sys
        from leasehold import Client, Unsupported
        with Client.from_url("sqlite:" + sys.argv[1]) as locks:
            try:
                locks.lock("x").acquire(timeout=0)
            except Unsupported as error:
                print(error)
        """
    with locks.lock("x"):
        assert "time namespace" in run_python(code, path, before=unshare)


@linux
def test_boot_unknown(path: Path, tmp_path: Path) -> None:
    with client_on(path, str(tmp_path / "nothing")) as locks, pytest.raises(Unsupported, match="identity of the boot"):
        locks.lock("x").acquire()


@linux
def test_pid_used_again(tmp_path: Path) -> None:
    sleeper = subprocess.Popen(["sleep", "30"])
    try:
        machine = Machine(fake_proc(tmp_path / "p", pid=sleeper.pid, started=777))
        me = machine.process()
        assert not machine.is_gone(Process(sleeper.pid, 777, me.pids), me)
        assert machine.is_gone(Process(sleeper.pid, 776, me.pids), me)
        assert not machine.is_gone(Process(sleeper.pid, 776, "pid:[1]"), me)  # a number of another namespace
        assert not machine.is_gone(Process(sleeper.pid, 0, me.pids), me)
    finally:
        sleeper.kill()
        sleeper.wait()
    assert Machine().is_gone(Process(sleeper.pid, 0, me.pids), me)
    assert not Machine().is_gone(Machine().process(), Machine().process())


@linux
def test_hidden_process_counts_as_alive(tmp_path: Path) -> None:
    """With hidepid the folder of another user's process is not there, but the process is."""
    machine = Machine(fake_proc(tmp_path / "p"))
    me = machine.process()
    assert not machine.is_gone(Process(1, 1, me.pids), me)


@linux
@pytest.mark.parametrize(
    ("take", "began"),
    [
        ("take('x', lease=60)", "name SET holder_started = holder_started - 1"),
        (
            "holds.setdefault('x', locks.rw_lock('x', lease=60).writer().acquire()).token",
            "entry SET started = started - 1",
        ),
    ],
    ids=["in-its-row", "entry"],
)
def test_entry_of_a_reused_pid_is_void(
    path: Path, locks: Client, peers: Callable[..., Peer], take: str, began: str
) -> None:
    """A plain lock is in its name's row, a writer has an entry."""
    mine: Any = locks.lock("x") if take.startswith("take") else locks.rw_lock("x").writer()
    peer = peers()
    peer.ask(take)
    assert mine.acquire(timeout=0.1) is None
    raw(path, f"UPDATE {began}")
    assert mine.acquire(timeout=1)
