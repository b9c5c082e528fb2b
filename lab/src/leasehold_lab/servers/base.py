"""The base of all test servers. Each is a child process with its own folder.

The child dies with this process, however this process ends: on Linux the child asks for a signal at its parent's
death. For the kernel, the parent is the *thread* that started the child. So one thread, which lives as long as this
process, starts all children.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from leasehold_lab.lifetime import tied_to_this_process

READY_WITHIN = 20.0
"""Seconds in which a server must answer after its start."""

STOP_WITHIN = 5.0
"""Seconds that a server gets to end by itself before it is killed."""

ROOTS = "LEASEHOLD_SERVERS"
"""Environment variable: folders, separated as in ``PATH``, each laid out as a file system (``usr/bin``, ...). Servers
are searched there first, and then among the installed programs. So other releases can run without an installation."""


class MissingServer(RuntimeError):
    """The program of a server is not installed. The message names its package."""


class Server(ABC):
    """One server. `start` or ``with`` starts it, and `stop` leaves nothing behind.

    A subclass defines the program (`programs`, `package`), its arguments, and when it is ready. For a program that
    refuses to run as root it names `accounts`: root starts the program as the first account that exists, which then
    owns its files.

    Attributes:
        port: of 127.0.0.1; it stays the same over a restart.
        folder: for the server's files; removed at the end.

    """

    programs: tuple[str, ...] = ()
    package = ""
    accounts: tuple[str, ...] = ()

    def __init__(self, binary: str | None = None) -> None:
        self.binary = find_program((binary,) if binary else self.programs, self.package)
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="leasehold-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._remove = weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    @property
    @abstractmethod
    def version(self) -> str:
        """The program and its version, for people."""

    @abstractmethod
    def _arguments(self) -> Sequence[str]:
        """Return the command line arguments, and write configuration files if needed."""

    def _command_prefix(self) -> Sequence[str]:
        """Return the prefix of the command line: empty by default."""
        return ()

    @abstractmethod
    def _ready(self) -> bool:
        """Return whether the server answers now; `OSError` counts as no."""

    @property
    def pid(self) -> int:
        """The process id; an error if it does not run."""
        if self._process is None:
            raise RuntimeError(f"{type(self).__name__} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process exists; a paused process does."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start the server, and wait until it answers.

        Raises:
            RuntimeError: it exited or does not answer; the message has the end of its log.

        """
        arguments, account = self._arguments(), self.account()
        if account is not None:
            change_owner(self.folder, account)
        with (self.folder / "log").open("ab") as log:
            self._process = spawn(
                [*self._command_prefix(), self.binary, *arguments], log.fileno(), self.folder, account
            )
        _children.add(self)
        started[self.version] += 1
        until = time.monotonic() + READY_WITHIN
        while not self._answers():
            if not self.running or time.monotonic() > until:
                self.kill()
                raise RuntimeError(f"{self.binary} did not start; its log ends:\n{self.log()[-2000:]}")
            time.sleep(0.01)
        return self

    def stop(self) -> None:
        """End the server and remove its files."""
        self.terminate()
        self._remove()

    def terminate(self) -> None:
        """Shut the server down cleanly, and keep its files."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            try:
                self._process.wait(STOP_WITHIN)
            except subprocess.TimeoutExpired:
                pass
            self.kill()

    def kill(self) -> None:
        """Kill the process (SIGKILL), as a crash does."""
        process, self._process = self._process, None
        _children.discard(self)
        if process is not None:
            process.kill()
            process.wait()

    def pause(self) -> None:
        """Pause the process (SIGSTOP): connections stay open and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Resume a paused process."""
        os.kill(self.pid, signal.SIGCONT)

    def account(self) -> Account | None:
        """Return the account of the server; None means that of this process."""
        return unprivileged(self.accounts) if self.accounts and os.name == "posix" and os.geteuid() == 0 else None

    def log(self) -> str:
        """Return the log of the server."""
        return (self.folder / "log").read_text(errors="replace")

    def disown(self) -> None:
        """Forget the process and the files in a forked child: they belong to the parent."""
        if self._process is not None:
            self._process.returncode = 0
        self._process = None
        self._remove.detach()

    def _answers(self) -> bool:
        try:
            return self._ready()
        except OSError:
            return False

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def find_program(names: Sequence[str], package: str) -> str:
    """Return the path of the first program that is in a folder of `ROOTS`, or that is installed.

    Raises:
        MissingServer: there is no such program.

    """
    unpacked = (os.pathsep.join((f"{root}/usr/bin", f"{root}/usr/sbin")) for root in roots())
    for path in (*unpacked, os.environ.get("PATH", os.defpath) + os.pathsep + "/usr/sbin"):
        for name in names:
            found = shutil.which(name, path=path)
            if found is not None:
                return os.path.abspath(found)
    hint = f"; install it, on Debian with: apt-get install {package}" if package else ""
    raise MissingServer(f"no {' or '.join(names)} on the PATH{hint}")


def roots() -> list[Path]:
    """Return the folders of `ROOTS`."""
    return [Path(root).absolute() for root in os.environ.get(ROOTS, "").split(os.pathsep) if root]


def find_files(pattern: str) -> Iterator[list[Path]]:
    """Search files by a pattern such as ``usr/share/java/a-*.jar``: in each of `ROOTS`, then in the file system."""
    for root in (*roots(), Path("/")):
        found = sorted(root.glob(pattern))
        if found:
            yield found


PORTS = range(10_000, 22_000)
"""The range of free ports. The kernel assigns higher ports to outgoing connections. If the range overlapped with those,
a connection could take a port before its server starts. A cluster's bus port, 10,000 above, is below them, too."""

_given: set[int] = set()


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that is free, and that was not returned recently."""
    start = secrets.randbelow(len(PORTS))
    if 2 * len(_given) > len(PORTS):
        _given.clear()
    ports: tuple[int, ...] = (*PORTS[start:], *PORTS[:start])
    for port in ports:
        if port not in _given and _bindable(port):
            _given.add(port)
            return port
    raise OSError(f"no port of {PORTS[0]} to {PORTS[-1]} is free")


def _bindable(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


Account = tuple[int, int]
"""User and group id."""


def unprivileged(names: Sequence[str]) -> Account:
    """Return the first account that exists, or else that of the user ``nobody``."""
    import pwd

    for name in names:
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        return found.pw_uid, found.pw_gid
    return 65534, 65534


def change_owner(folder: Path, account: Account) -> None:
    """Make the account the owner of a folder and of everything in it."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, *account, follow_symlinks=False)


def reserve_port(port: int) -> int:
    """Reserve a port of 127.0.0.1 for a server; return the file descriptor that keeps it.

    The socket is bound and never listens. A server can still bind the port, since both set SO_REUSEADDR, even after a
    crash. The kernel never assigns the port to others meanwhile.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", port))
    descriptor = holder.detach()
    reserved.add(descriptor)
    return descriptor


def release_port(descriptor: int) -> None:
    """Release a port that `reserve_port` kept."""
    reserved.discard(descriptor)
    os.close(descriptor)


def spawn(command: Sequence[str], log: int, folder: Path, account: Account | None = None) -> subprocess.Popen[bytes]:
    """Start a child process that dies with this one and writes to the descriptor ``log``; as ``account`` if given."""
    uid, gid = account or (None, None)
    if sys.platform == "linux":
        command = tied_to_this_process(command, uid or 0, gid or 0)
        uid = gid = None
    groups: Sequence[int] | None = None if uid is None else ()

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, start_new_session=True, user=uid,
            group=gid, extra_groups=groups,
        )  # fmt: skip

    return _starter().submit(start).result()


reserved: set[int] = set()
"""File descriptors that keep the ports of servers of this process."""

started: Counter[str] = Counter()
"""How often each version of a server was started by this process: for the table at the end of a test run."""

_children: weakref.WeakSet[Server] = weakref.WeakSet()
_starters: dict[int, concurrent.futures.ThreadPoolExecutor] = {}


def _starter() -> concurrent.futures.ThreadPoolExecutor:
    """Return this process's starting thread; a forked child has its own."""
    pid = os.getpid()
    if pid not in _starters:
        _starters[pid] = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="server-starter")
    return _starters[pid]


def _forget_in_child() -> None:
    for server in list(_children):
        server.disown()
    _children.clear()


def _stop_all() -> None:
    for server in list(_children):
        server.stop()


os.register_at_fork(after_in_child=_forget_in_child)
atexit.register(_stop_all)
