"""Forks of a process with a SQLite client."""

from __future__ import annotations

from pathlib import Path

from sqlite_peers import linux, raw, run_python


@linux
def test_fork(path: Path) -> None:
    """What the child commits survives the parent's close, and the child neither renews nor releases the parent's hold.

    If the child used the inherited connection, its last write would vanish without an error.
    """
    code = """
        import os, sys, time, warnings
        from leasehold import Client
        from leasehold._model import Change
        from leasehold._runtimes.base import finish
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 warns of any fork with threads
        locks = Client.from_url("sqlite:" + sys.argv[1])
        hold = locks.lock("x", lease=2).acquire()
        r, w = os.pipe()
        r2, w2 = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                assert hold.remaining == 0
                assert locks.lock("x").acquire(timeout=0) is None
                with locks.lock("y"):
                    finish(locks.store.compare_and_set("child", Change(b"1")))
                os.write(w, b"1")
                os.read(r2, 1)  # the parent has closed
                finish(locks.store.compare_and_set("child", Change(b"2")))
                assert locks.inspect("x") is None
            except BaseException:
                import traceback; traceback.print_exc(); os._exit(1)
            sys.exit(0)
        os.read(r, 1)
        hold.renew()
        finish(locks.store.compare_and_set("parent", Change(b"1")))
        hold.release()
        locks.close()
        os.write(w2, b"1")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        with Client.from_url("sqlite:" + sys.argv[1]) as again:
            for name in ("child", "parent"):
                print(finish(again.store.compare_and_set(name, Change())).value)
        """
    assert run_python(code, path).split() == ["b'2'", "b'1'"]


@linux
def test_fork_amid_other_threads(path: Path) -> None:
    code = """
        import os, sys, threading, warnings
        from leasehold import Client
        warnings.simplefilter("ignore", DeprecationWarning)
        locks = Client.from_url("sqlite:" + sys.argv[1])
        stop = threading.Event()
        def work(name):
            while not stop.is_set():
                with locks.lock(name): pass
        threads = [threading.Thread(target=work, args=(name,)) for name in "aab"]
        for thread in threads: thread.start()
        for _ in range(12):
            pid = os.fork()
            if pid == 0:
                for _ in range(3):
                    with locks.lock("a", timeout=20): pass
                locks.close()
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        stop.set()
        for thread in threads: thread.join()
        print(locks.holds())
        locks.close()
        """
    assert run_python(code, path).strip() == "[]"
    assert raw(path, "PRAGMA integrity_check") == [["ok"]]


@linux
def test_a_fork_without_preparation_is_refused(path: Path) -> None:
    code = """
        import os, sys
        from leasehold import Client, StoreUnavailable
        from leasehold.stores.sqlite.database import Database
        locks = Client.from_url("sqlite:" + sys.argv[1])
        with locks.lock("x"): pass
        Database._drop, drop = (lambda self: None), Database._drop  # as if forked from C, without Python's hooks
        pid = os.fork()
        if pid == 0:
            try:
                locks.lock("x").acquire()
            except StoreUnavailable as error:
                assert "forked" in str(error)
                sys.exit(0)
            sys.exit(1)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        Database._drop = drop
        with locks.lock("x"): pass
        locks.close()
        """
    assert run_python(code, path).strip() == "0"
