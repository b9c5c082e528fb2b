"""The programs of `docs/shutdown.md`, run as they stand there, and what becomes of their lock when they end."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from leasehold import Client
from leasehold_lab.servers import RedisServer
from leasehold_lab.servers.base import free_port
from support.patience import until

PAGE = Path(__file__).parents[2] / "docs" / "shutdown.md"

LOCK = "stock:42"

LONG = 600
"""A lease that does not end while a test runs: a client that gets the lock got it by a release."""

SHORT = 2
"""A lease that a test waits for."""

PATIENCE = 40.0
"""Seconds in which something happens, on a machine that is busy."""

BAD = re.compile(r"Traceback|WARNING|ERROR|CRITICAL|Lost\(|: lost: |renewal failed|Exception ignored")
"""What is not in the log of a program that ends as it should."""


def examples() -> dict[str, str]:
    """Return the programs of the page, by the name in their first line."""
    found = re.findall(r"^```python\n# (\S+)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return dict(found)


def changed(code: str, before: str, after: str) -> str:
    """Replace something that must be there."""
    assert before in code, f"the page no longer says {before!r}"
    return code.replace(before, after)


@dataclass(frozen=True, slots=True)
class Place:
    """A folder with the programs of the page, and the server that they use."""

    folder: Path
    server: RedisServer

    def write(self, name: str, *, lease: int = LONG, work: float | None = None, without: str = "") -> str:
        """Write a program with another lease, another time of work, or without one of its lines."""
        code = changed(examples()[name], "lease=5", f"lease={lease}")
        if work is not None:
            code = changed(code, "sleep(2)  # the work", f"sleep({work})")
        if without:
            code = changed(code, without, "pass")
        (self.folder / name).write_text(code)
        return name

    def copy(self, name: str) -> None:
        """Write a file as it is."""
        (self.folder / name).write_text(examples()[name])

    @property
    def broker(self) -> str:
        """Another database of the server, for Celery."""
        return f"{self.server.url.rpartition('/')[0]}/1"

    @contextmanager
    def run(self, *command: str, **environment: str) -> Iterator[Program]:
        """Run a module of Python; it is killed with all that it started, whatever happens."""
        given = {"LEASEHOLD_URL": self.server.url, "BROKER_URL": self.broker, "HOME": str(self.folder)}
        log = self.folder / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, *command],
                cwd=self.folder,
                env={**os.environ, **given, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # its process group has all that it starts
            )
        try:
            with Client.from_url(self.server.url) as rival:
                yield Program(process, rival, log)
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:  # nothing is left
                pass
            process.wait()


@dataclass(frozen=True, slots=True)
class Program:
    """One that runs, and a rival that wants its lock."""

    process: subprocess.Popen[bytes]
    rival: Client
    log: Path

    def holder(self) -> int:
        """Wait until the lock is held; return the process that holds it."""
        owners = list[str]()

        def held() -> bool:
            assert self.process.poll() is None, self.said()
            info = self.rival.inspect(LOCK)
            owners.extend(str(holder.owner) for holder in (info.holders if info else ()))
            return bool(owners)

        until(held, within=PATIENCE)
        return int(owners[0].split(":")[1])

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        """Wait for its end; return the exit code."""
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end\n{self.said()}") from None

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def until_said(self, words: str) -> None:
        until(lambda: words in self.said(), within=PATIENCE)

    def is_free_at_once(self, name: str = LOCK) -> None:
        hold = self.rival.lock(name, lease=LONG).acquire(timeout=PATIENCE)
        assert hold is not None, f"{name} is still held\n{self.said()}"
        hold.release()

    def is_free_by_the_end_of_the_lease(self) -> None:
        """Check that it is held after a crash, and free when the short lease has ended."""
        info = self.rival.inspect(LOCK)
        assert info is not None, f"it was released\n{self.said()}"
        start = time.monotonic()
        hold = self.rival.lock(LOCK, lease=SHORT).acquire(timeout=PATIENCE)
        assert hold is not None
        assert time.monotonic() - start < SHORT + 2, "a crash blocks for a lease, and what a busy machine adds"
        hold.release()

    def said_nothing_bad(self) -> None:
        assert not BAD.search(self.said()), self.said()


class Request:
    """A request that is under way; the answer is read when it is asked for."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self._socket.sendall(b"GET / HTTP/1.0\r\nHost: shop\r\n\r\n")

    def answer(self) -> bytes:
        """Return status code and body; nothing if the connection was cut."""
        got = b""
        try:
            while more := self._socket.recv(65536):
                got += more
        except ConnectionResetError:
            return b""
        head, _, body = got.partition(b"\r\n\r\n")
        return b" ".join([*head.split(b" ")[1:2], body.strip()]) if head else b""

    def close(self) -> None:
        self._socket.close()


def requested(program: Program, port: int) -> Request:
    """Send a request as soon as the server listens; return when it holds the lock."""
    sent = list[Request]()

    def accepted() -> bool:
        assert program.process.poll() is None, program.said()
        try:
            sent.append(Request(port))
        except ConnectionRefusedError:
            return False
        return True

    until(accepted, within=PATIENCE)
    try:
        program.holder()
    except BaseException:
        sent[0].close()
        raise
    return sent[0]


def on_a_free_port(command: Sequence[str]) -> tuple[int, list[str]]:
    """Return a port, and a command with it in the place of PORT."""
    port = free_port()
    return port, [word.replace("PORT", str(port)) for word in command]
