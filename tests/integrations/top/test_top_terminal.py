"""The real command in a real terminal, through tmux; and what it says where there is none."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leasehold import Client
from leasehold_lab.servers import RedisServer


class Terminal:
    """A terminal of 100 by 20 cells and 16 colors, and a command in it."""

    def __init__(self, folder: Path) -> None:
        self._base = ["tmux", "-S", str(folder / "tmux"), "-f", "/dev/null"]

    def start(self, *arguments: str, term: str = "xterm-16color", **environment: str) -> None:
        unset = ("-u", "COLUMNS", "-u", "LINES", "-u", "PYTEST_CURRENT_TEST")  # this terminal has a size of its own
        words = ["env", *unset, f"TERM={term}", *(f"{key}={value}" for key, value in environment.items())]
        line = shlex.join([*words, sys.executable, "-m", "leasehold", *arguments])
        # The shell keeps the screen after the end of the command, with its exit code.
        self._tmux("new-session", "-d", "-x", "100", "-y", "20", f"{line}; echo code $?; exec sleep 60")

    def press(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    @property
    def screen(self) -> str:
        return self._tmux("capture-pane", "-p")

    def shows(self, text: str, within: float = 10.0) -> None:
        """Wait until a text is on the screen; a failure shows the screen."""
        self._waits(lambda screen: text in screen, f"'{text}' is not shown", within)

    def hides(self, text: str) -> None:
        """Wait until a text is no longer on the screen."""
        self._waits(lambda screen: text not in screen, f"'{text}' is shown", 10.0)

    def _waits(self, true: Callable[[str], bool], wrong: str, within: float) -> None:
        end = time.monotonic() + within
        while not true(screen := self.screen):
            assert time.monotonic() < end, f"{wrong} within {within} s:\n{screen}"
            time.sleep(0.02)

    def close(self) -> None:
        subprocess.run([*self._base, "kill-server"], capture_output=True, check=False)

    def _tmux(self, *arguments: str) -> str:
        done = subprocess.run([*self._base, *arguments], capture_output=True, text=True, check=True, timeout=20)
        return done.stdout


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    if shutil.which("tmux") is None:
        pytest.skip("LEFT OUT: tmux is not installed")
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.close()


def test_a_lock_is_found_inspected_and_broken_by_keys(
    terminal: Terminal, redis_server: RedisServer, namespace: str
) -> None:
    with Client.from_url(redis_server.url, namespace=namespace) as client:
        hold = client.lock("stock:42", meta="refill", lease=60).acquire()
        other = client.lock("order:7").acquire()
        assert hold is not None
        assert other is not None
        environment = {"LEASEHOLD_URL": redis_server.url, "LEASEHOLD_NAMESPACE": namespace}
        terminal.start("top", "--interval", "0.2", "--sort", "name", **environment)
        terminal.shows("order:7", 30)
        terminal.shows("stock:42")
        terminal.press("/", "s", "t", "o", "Enter")
        terminal.hides("order:7")
        terminal.shows("Inspect")  # the table has the keys again
        terminal.press("Enter")
        terminal.shows("refill")  # "meta" may be on the line before
        terminal.press("b")
        terminal.shows("type the name or the token")
        terminal.press("-l", "stock:42")
        terminal.press("Enter")
        terminal.shows("stock:42 is free")
        terminal.shows("broken: the holder of 'stock:42'")
        terminal.press("Escape")
        terminal.hides("Esc back")  # a key that comes at once after Escape means Alt and that key to a terminal
        terminal.press("q")
        terminal.shows("code 0")
        other.release()


def test_ctrl_c_ends_it_while_the_store_is_stopped(terminal: Terminal, namespace: str) -> None:
    with RedisServer() as server:
        terminal.start("top", "--interval", "0.2", LEASEHOLD_URL=server.url, LEASEHOLD_NAMESPACE=namespace)
        terminal.shows("no lock is held", 30)
        server.pause()
        try:
            terminal.shows("no answer for")
            terminal.press("C-c")
            terminal.shows("code 0", 5)
        finally:
            server.resume()


@pytest.mark.parametrize("term", ["dumb", "xterm"])
def test_without_a_terminal_it_names_the_command_for_text(tmp_path: Path, term: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "leasehold", "top", "--url", f"sqlite:{tmp_path}/locks.db"],
        env={**os.environ, "TERM": term},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 64
    assert done.stdout == ""
    assert "top needs a terminal; for text use `leasehold ls`" in done.stderr


def test_help_needs_no_textual_and_a_missing_one_is_named(tmp_path: Path) -> None:
    hide = "import sys; sys.modules['textual'] = None; import leasehold.cli; leasehold.cli.main(prog_name='leasehold')"
    done = subprocess.run([sys.executable, "-c", hide, "top", "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "--interval" in done.stdout
    code = (
        "import importlib.util, leasehold.cli.top.command as command\n"
        "command._has_terminal = lambda: True\n"
        "command.find_spec = lambda name: None\n"
        "import leasehold.cli; leasehold.cli.main(prog_name='leasehold')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "top", "--url", f"sqlite:{tmp_path}/locks.db"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert "pip install 'leasehold[top]'" in done.stderr
