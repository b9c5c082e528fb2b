"""Forks the clients of a run from one process that has imported all that they need.

Starting an interpreter and importing a driver takes about as long as a client then works in a short run. So it is done
once: ``python -m leasehold_lab.verify.clients.forkserver FD SCHEME``. The run sends requests over a socket, one after
the other. The process has no threads and no connections, so its clients begin as if they were new. It reaps a client
only on request, so that no other process gets its id before. It ends when that socket is closed, whatever ended the
run, and kills the clients that are left: a client that a fault has stopped would stay stopped for ever. If the
forkserver itself is killed, the kernel kills them.
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
from contextlib import suppress
from types import TracebackType
from typing import IO, Self

from leasehold.stores.registry import factory
from leasehold_lab.lifetime import end_with
from leasehold_lab.verify.clients import worker

REQUEST = struct.Struct("=q")
"""The id of a process whose exit status is wanted; 0 requests a new client, with its three standard files."""

RESPONSE = struct.Struct("=?q")
"""Whether there is a result, and the result: a process id or an exit status."""

FIRST_POLL, POLL_EVERY = 0.001, 0.02
"""Seconds until the second poll for the end of a client, and the most between two later ones."""


class Child:
    """A forked client, with the interface of `subprocess.Popen`; it is not our child process.

    Attributes:
        stdin: its standard input; ``stdout``: its standard output, which does not block.

    """

    def __init__(self, forkserver: ForkServer, pid: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self._forkserver = forkserver
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return its exit status, negative for a signal; None while it runs or is stopped."""
        if self._code is None:
            self._code = self._forkserver.exit_status(self.pid)
        return self._code

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def wait(self, timeout: float) -> int | None:
        """Wait until it has ended, for ``timeout`` seconds at most; return what `poll` returns."""
        until, pause = time.monotonic() + timeout, FIRST_POLL
        while (code := self.poll()) is None and time.monotonic() < until:
            time.sleep(pause)
            pause = min(2 * pause, POLL_EVERY)
        return code

    def close(self) -> None:
        """Close our ends of its pipes."""
        self.stdin.close()
        self.stdout.close()


class ForkServer:
    """Forks clients of stores with one scheme, within its ``with`` block; for one thread.

    One forkserver may serve several runs.
    """

    def __init__(self, scheme: str) -> None:
        self._scheme = scheme
        self._connection, self._theirs = socket.socketpair()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        number = self._theirs.fileno()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "leasehold_lab.verify.clients.forkserver", str(number), self._scheme],
            stdin=subprocess.DEVNULL,
            pass_fds=[number],
            start_new_session=True,  # Ctrl-C must reach only the process of the run
        )
        self._theirs.close()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()
        if self._process is not None:
            self._process.wait()

    def client(self, stderr: IO[bytes]) -> Child:
        """Fork a client that reads its orders from standard input, and writes its standard error to an open file.

        Raises:
            EOFError, OSError: the forkserver has ended; its standard error has the reason.

        """
        theirs_in, stdin = os.pipe()
        stdout, theirs_out = os.pipe()
        try:
            socket.send_fds(self._connection, [REQUEST.pack(0)], [theirs_in, theirs_out, stderr.fileno()])
            _, pid = self._response()
        except BaseException:
            os.close(stdin)
            os.close(stdout)
            raise
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        os.set_blocking(stdout, False)
        return Child(self, pid, os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb"))

    def exit_status(self, pid: int) -> int | None:
        """Reap a client that has ended, and return its exit status; None while it runs."""
        self._connection.sendall(REQUEST.pack(pid))
        known, code = self._response()
        return code if known else None

    def _response(self) -> tuple[bool, int]:
        known, result = RESPONSE.unpack(_exactly(self._connection, RESPONSE.size))
        return known, result


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise EOFError("the forkserver has ended")
        data += more
    return data


def main() -> int:
    """Serve requests until the other end of the socket is closed."""
    factory(sys.argv[2])  # this imports the driver
    gc.collect()
    gc.freeze()
    clients = set[int]()
    with socket.socket(fileno=int(sys.argv[1])) as connection, suppress(ConnectionError):
        while True:
            data, files, _, _ = socket.recv_fds(connection, REQUEST.size, 3)
            if not data:
                break
            (pid,) = REQUEST.unpack(data)
            if pid:
                ended, code = _reap(pid)
                if ended:
                    clients.discard(pid)
                connection.sendall(RESPONSE.pack(ended, code))
            else:
                clients.add(new := _fork(connection, files))
                connection.sendall(RESPONSE.pack(True, new))
    for client in clients:
        os.kill(client, signal.SIGKILL)
    return 0


def _reap(pid: int) -> tuple[bool, int]:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return bool(ended), os.waitstatus_to_exitcode(status) if ended else 0


def _fork(connection: socket.socket, files: list[int]) -> int:
    """Fork; the child runs a client with these files as standard input, output and error, and no other files."""
    us = os.getpid()
    if pid := os.fork():
        for file in files:
            os.close(file)
        return pid
    code = 1
    try:
        end_with(us)
        os.setsid()
        connection.close()
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
