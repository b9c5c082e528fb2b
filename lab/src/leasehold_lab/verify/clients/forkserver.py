"""Where the clients of a run come from: a process that has imported all that they need, and divides for each.

An interpreter that starts, and imports a driver, takes longer than a client then works for in a second or two. So it is
done once: ``python -m leasehold_lab.verify.clients.forkserver FD SCHEME``. Whoever steers the run asks over a socket,
one request after the other. The process has no threads and no connections, so its clients begin as if they were new.
It looks at how a client ended only when asked, so that nobody else gets its process id before. It ends with that
socket.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import struct
import subprocess
import sys
import time
import traceback
from types import TracebackType
from typing import IO, Self

from leasehold.stores.registry import factory
from leasehold_lab.verify.clients import worker

QUESTION = struct.Struct("=q")
"""The process that is asked about; 0 asks for a new client, with its standard input, output and error."""

ANSWER = struct.Struct("=?q")
"""Whether it is known, and what: a process, or how it ended."""

FIRST_LOOK, LOOKS_EVERY = 0.001, 0.02
"""Seconds until the second look at whether a client has ended, and between two later ones."""


class Child:
    """A client: what `subprocess.Popen` would be, if it were a child of ours.

    Attributes:
        stdin: its standard input; ``stdout``: its standard output, to read from without waiting.

    """

    def __init__(self, nursery: Nursery, pid: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self._nursery = nursery
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return how it ended: its status, or less than 0 for a signal; None while it runs, or stands still."""
        if self._code is None:
            self._code = self._nursery.ended(self.pid)
        return self._code

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def wait(self, timeout: float) -> int | None:
        """Wait until it has ended, for so many seconds at most; return what `poll` returns."""
        until, pause = time.monotonic() + timeout, FIRST_LOOK
        while (code := self.poll()) is None and time.monotonic() < until:
            time.sleep(pause)
            pause = min(2 * pause, LOOKS_EVERY)
        return code

    def close(self) -> None:
        """Close our ends of its pipes."""
        self.stdin.close()
        self.stdout.close()


class Nursery:
    """Makes clients of stores with a scheme, from ``with`` to the end of its block; for one thread.

    It may outlive a run, and serve the next one.
    """

    def __init__(self, scheme: str) -> None:
        self._scheme = scheme
        self._link, self._theirs = socket.socketpair()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        number = self._theirs.fileno()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "leasehold_lab.verify.clients.forkserver", str(number), self._scheme],
            stdin=subprocess.DEVNULL,
            pass_fds=[number],
            start_new_session=True,  # Ctrl-C is for the process that steers
        )
        self._theirs.close()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._link.close()
        if self._process is not None:
            self._process.wait()

    def client(self, complaints: IO[bytes]) -> Child:
        """Make a client that reads its orders from its standard input, and complains to an open file.

        Raises:
            EOFError, OSError: the nursery has ended; it has said why.

        """
        theirs_in, stdin = os.pipe()
        stdout, theirs_out = os.pipe()
        try:
            socket.send_fds(self._link, [QUESTION.pack(0)], [theirs_in, theirs_out, complaints.fileno()])
            _, pid = self._answer()
        except BaseException:
            os.close(stdin)
            os.close(stdout)
            raise
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        os.set_blocking(stdout, False)
        return Child(self, pid, os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb"))

    def ended(self, pid: int) -> int | None:
        """Return how a client ended, the first time that it is seen to have; None while it has not."""
        self._link.sendall(QUESTION.pack(pid))
        known, code = self._answer()
        return code if known else None

    def _answer(self) -> tuple[bool, int]:
        known, what = ANSWER.unpack(_exactly(self._link, ANSWER.size))
        return known, what


def _exactly(link: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = link.recv(size - len(data))
        if not more:
            raise EOFError("the process that makes clients has ended")
        data += more
    return data


def main() -> int:
    """Answer until whoever asks is gone."""
    factory(sys.argv[2])  # with it comes the driver
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as link:
        while True:
            data, files, _, _ = socket.recv_fds(link, QUESTION.size, 3)
            if not data:
                return 0
            (pid,) = QUESTION.unpack(data)
            link.sendall(ANSWER.pack(*(_ended(pid) if pid else (True, _divide(link, files)))))


def _ended(pid: int) -> tuple[bool, int]:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return bool(ended), os.waitstatus_to_exitcode(status) if ended else 0


def _divide(link: socket.socket, files: list[int]) -> int:
    """Fork; in the child be a client that has these files as standard input, output and error, and nothing else."""
    if pid := os.fork():
        for file in files:
            os.close(file)
        return pid
    code = 1
    try:
        os.setsid()
        link.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        code = worker.main()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
