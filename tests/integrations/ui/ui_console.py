"""The console in a child process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
from playwright.sync_api import Page

from leasehold import Client
from leasehold_lab.servers import RedisServer

T = TypeVar("T")
TOKEN = "correct-horse-battery-staple"


@dataclass
class Served:
    """A console that answers at ``address``."""

    address: str
    process: subprocess.Popen[str]


@contextmanager
def console(url: str, namespace: str, *options: str, token: str = "") -> Iterator[Served]:
    """Run ``leasehold ui`` on a free port."""
    env = {**os.environ, "LEASEHOLD_URL": url, "LEASEHOLD_UI_TOKEN": token}
    command = [sys.executable, "-m", "leasehold", "ui", "--port", "0", "--namespace", namespace, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line.startswith("http"):
                pytest.fail(f"{line}{process.communicate(timeout=10)}")
            yield Served(line.split(" ")[0], process)
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


Console = Callable[..., Served]


@pytest.fixture
def served(redis_server: RedisServer, namespace: str) -> Iterator[Console]:
    """Run consoles for the test's namespace."""
    with ExitStack() as stack:
        yield lambda *options, **more: stack.enter_context(
            console(more.pop("url", redis_server.url), namespace, *options, **more)
        )


@pytest.fixture
def locks(redis_server: RedisServer, namespace: str) -> Iterator[Client]:
    with Client.from_url(redis_server.url, namespace=namespace) as client:
        yield client


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads for blocking clients: Playwright keeps an event loop in the test's own thread."""
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture
def apart(pool: ThreadPoolExecutor) -> Callable[..., Any]:
    def apart(function: Callable[..., T], *args: Any, **options: Any) -> T:
        return pool.submit(function, *args, **options).result(30)

    return apart


def changes(page: Page, locks: Client, apart: Callable[..., Any]) -> list[float]:
    """Acquire and release five names; return the seconds after which an open list without locks shows each change."""
    waited = list[float]()
    for number in range(5):
        hold = apart(locks.lock(f"order:{number}", meta={"job": "sale"}).acquire)
        began = time.monotonic()
        page.wait_for_selector("#rows tr")
        waited.append(time.monotonic() - began)
        apart(hold.release)
        began = time.monotonic()
        page.wait_for_selector("#rows tr", state="detached")
        waited.append(time.monotonic() - began)
    return waited
