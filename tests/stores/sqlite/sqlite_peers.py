"""Other processes that use a file, and what a machine looks like to them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from leasehold import Client
from leasehold.stores.sqlite import SQLite
from leasehold.stores.sqlite.machine import Machine

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
root = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and unshare")

PEER = """
import json, os, sys, threading, time
from leasehold import Client, LeaseLost
from leasehold._runtimes.base import finish
from leasehold._model import Change
from leasehold.stores.sqlite import SQLite
from leasehold.stores.sqlite.machine import Machine
from pathlib import Path
path, proc = sys.argv[1:]
locks = Client(SQLite(Path(path), machine=Machine(proc)), response_timeout=10)
holds = {}
def take(name, **options):
    timeout = options.pop("timeout", None)
    hold = locks.lock(name, **options).acquire(timeout=timeout)
    holds[name] = hold
    return None if hold is None else hold.token
def tell(work):
    try:
        work()
    except Exception as error:
        return type(error).__name__
    return "ok"
for line in sys.stdin:
    print(json.dumps(eval(line)), flush=True)
"""


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Peer:
    """Another process with a client, which evaluates the expressions that it receives."""

    def __init__(self, path: Path, proc: str = "/proc") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PEER, str(path), proc], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def ask(self, line: str) -> Any:
        self.tell(line)
        return self.answer()

    def close(self) -> None:
        with self.process:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()


def fake_proc(
    folder: Path, *, boot: str = "", offset: int = 0, mounts: str = "", pid: int = 0, started: int = 1
) -> str:
    """Write a /proc of another machine; `self` is this process, ``pid`` another one that began at ``started``."""
    real = Path("/proc")
    me = folder / str(os.getpid())
    (me / "ns").mkdir(parents=True)
    for name in ("pid", "net", "time", "time_for_children"):
        (me / "ns" / name).symlink_to(os.readlink(f"/proc/self/ns/{name}"))
    (folder / "self").symlink_to(str(os.getpid()))
    (me / "stat").write_text((real / "self/stat").read_text())
    (me / "timens_offsets").write_text(f"monotonic 0 0\nboottime {offset} 0\n")
    (me / "mountinfo").write_text(mounts or (real / "self/mountinfo").read_text())
    (folder / "sys/kernel/random").mkdir(parents=True)
    own = (real / "sys/kernel/random/boot_id").read_text()
    (folder / "sys/kernel/random/boot_id").write_text(boot or own)
    if pid:
        (folder / str(pid)).mkdir()
        fields = "S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0"
        (folder / str(pid) / "stat").write_text(f"{pid} (any) ) thing) {fields} {started} 0\n")
    return str(folder)


def client_on(path: Path, proc: str, **options: Any) -> Client:
    return Client(SQLite(path, machine=Machine(proc), **options), response_timeout=0.5)


def raw(path: Path, statement: str, *values: object, exclusive: bool = False) -> list[Any]:
    """Run one statement in a process of its own: a second SQLite user in this process is not the point here.

    ``exclusive``: only if nobody else has the file open, else fail at once.
    """
    code = (
        "import json, sqlite3, sys\n"
        f"db = sqlite3.connect(sys.argv[1], timeout={0 if exclusive else 5})\n"
        f"db.execute('PRAGMA locking_mode={'EXCLUSIVE' if exclusive else 'NORMAL'}').fetchall()\n"
        "print(json.dumps(db.execute(sys.argv[2], json.loads(sys.argv[3])).fetchall()))\n"
        "db.commit()\n"
        "db.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), statement, json.dumps(values)], check=True, capture_output=True
    )
    found: list[Any] = json.loads(done.stdout)
    return found


def run_python(code: str, *arguments: object, before: tuple[str, ...] = ()) -> str:
    done = subprocess.run(
        [*before, sys.executable, "-W", "error", "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr, done.stderr
    return done.stdout
