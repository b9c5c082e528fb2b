"""`leasehold run` on a terminal: Ctrl-C arrives once, Ctrl-Z cannot outlast the lease."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from shells import NOISE, ON_TERMINAL, Shell, alive

from support.patience import until


class Terminal:
    """A pseudo-terminal, and a command as its foreground."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._keys, self._line = os.openpty()

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        line = {"stdin": self._line, "stdout": self._line, "stderr": self._line}
        return self._shell.start(*arguments, wrap=ON_TERMINAL, start_new_session=True, **line)

    def press(self, key: bytes) -> None:
        os.write(self._keys, key)

    def close(self) -> None:
        os.close(self._keys)
        os.close(self._line)


@pytest.fixture
def terminal(sqlite_shell: Shell) -> Iterator[Terminal]:
    terminal = Terminal(sqlite_shell)
    yield terminal
    sqlite_shell.close()
    terminal.close()


def test_ctrl_c_reaches_the_command_once(sqlite_shell: Shell, terminal: Terminal) -> None:
    count = (
        "import pathlib, signal, time\n"
        "signal.signal(signal.SIGINT, lambda *_: open('got', 'a').write('INT\\n'))\n"
        "pathlib.Path('ready').write_text('1\\n')\n"
        "until = time.monotonic() + 1\n"
        "while time.monotonic() < until: time.sleep(0.02)\n"
    )
    run = terminal.start("run", "job", "--", sys.executable, "-c", count)
    sqlite_shell.file("ready")
    terminal.press(b"\x03")
    assert run.wait(10) == 0
    assert sqlite_shell.file("got") == "INT"


def test_ctrl_c_ends_command_and_run_by_sigint(sqlite_shell: Shell, terminal: Terminal) -> None:
    run = terminal.start("run", "job", "--", "sh", "-c", "echo $$ >pid; exec sleep 60")
    pid = int(sqlite_shell.file("pid"))
    terminal.press(b"\x03")
    assert run.wait(5) == -signal.SIGINT
    assert not alive(pid)
    assert sqlite_shell.json("ls") == []


def test_ctrl_c_while_waiting_leaves_the_queue(sqlite_shell: Shell, terminal: Terminal) -> None:
    sqlite_shell.start("run", "job", "--", "sh", "-c", "echo $$ >pid; exec sleep 60")
    sqlite_shell.file("pid")
    run = terminal.start("run", "job", "true")
    until(lambda: len(sqlite_shell.json("show", "job")["waiters"]) == 1)
    terminal.press(b"\x03")
    assert run.wait(5) == -signal.SIGINT
    assert sqlite_shell.json("show", "job")["waiters"] == []


def test_a_signal_that_is_not_from_the_terminal_is_passed_on(sqlite_shell: Shell, terminal: Terminal) -> None:
    run = terminal.start("run", "job", "--", "sh", "-c", "echo $$ >pid; exec sleep 60")
    sqlite_shell.file("pid")
    run.send_signal(signal.SIGTERM)
    assert run.wait(5) == 128 + signal.SIGTERM


def test_ctrl_z_beyond_the_lease_ends_the_command_while_it_is_stopped(sqlite_shell: Shell, terminal: Terminal) -> None:
    run = terminal.start("run", "job", "--lease", "1", "--", "sh", "-c", "echo $$ >pid; sleep 60; echo 1 >late")
    pid = int(sqlite_shell.file("pid"))
    for one in (run.pid, pid):  # the kernel stops no orphaned group at Ctrl-Z; a shell around us would make it none
        os.kill(one, signal.SIGSTOP)
    assert until(lambda: not alive(pid), 5) < 1 + NOISE
    os.kill(run.pid, signal.SIGCONT)
    assert run.wait(5) == 76
    assert not (sqlite_shell.folder / "late").exists()
