"""The child processes of the demo: services, nginx, Redis servers. They end with the demo, however that ends."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from leasehold_lab.demo import service

STARTS_WITHIN = 30.0
"""Seconds within which a child must serve."""

ENDS_WITHIN = 5.0
"""Seconds that the children get to exit before they are killed."""

ENDS_SOONER = 0.4
"""The same after Ctrl-C. The services then leave their counters to the demo, which discards them, too."""

PORT_ATTEMPTS = 5
"""Tries with another port for a server that cannot choose its port itself, if another process takes the port."""


class DemoError(Exception):
    """The demo cannot run; the message has the reason and what to do."""


class Children:
    """Starts processes, and stops all of them at the end of its ``with`` block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, arguments: Sequence[str], settings: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
        """Start a Python module with a pipe as standard input, and its standard error in ``log``."""
        with log.open("wb") as complaints:
            child = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                env={**os.environ, **settings},
            )
        self._running.append(child)
        return child

    def services(self, count: int, settings: Mapping[str, str]) -> list[int]:
        """Start all services at the same time; return their ports."""
        started: list[tuple[subprocess.Popen[bytes], Path]] = []
        for number in range(1, count + 1):
            log = self._folder / f"service-{number}.log"
            mine = {**settings, service.NUMBER: str(number)}
            started.append((self.start([service.__name__], mine, log), log))
        return [_first_line_as_port(child, log) for child, log in started]

    def nginx(self, services: Sequence[int]) -> int:
        """Start nginx as a reverse proxy for the services; return its port."""
        return self.proxy(lambda folder, port: nginx_config(folder, port, services))

    def proxy(self, config: Callable[[Path, int], str]) -> int:
        """Start nginx with a configuration for a folder and a port; return the port."""
        program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/opt/homebrew/bin")
        if program is None:
            raise DemoError(
                "nginx is not installed; install it (Debian: apt-get install nginx-light) or leave --nginx out"
            )
        folder = self._folder / "nginx"
        folder.mkdir()

        def command(port: int) -> list[str]:
            file = folder / "nginx.conf"
            file.write_text(config(folder, port), encoding="utf-8")
            return [program, "-p", str(folder), "-c", str(file), "-e", "stderr"]

        return self._server("nginx", command)

    def redis(self, number: int) -> int:
        """Start a Redis server that keeps nothing on disk; return its port."""
        program = shutil.which("redis-server") or "redis-server"

        def command(port: int) -> list[str]:
            settings = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(self._folder)]
            return [program, "--port", str(port), *settings]

        return self._server(f"redis-{number}", command)

    def _server(self, name: str, command: Callable[[int], list[str]]) -> int:
        log = self._folder / f"{name}.log"
        for _ in range(PORT_ATTEMPTS):
            port = free_port()
            child = self.start(["leasehold_lab.demo.parent_guard", str(os.getpid()), *command(port)], {}, log)
            if _serves(child, port):
                return port
        raise DemoError(f"{name} did not start: {_tail(log)}")

    def __enter__(self) -> Children:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self._running:
            if child.stdin is not None:
                child.stdin.close()
        until = time.monotonic() + (ENDS_WITHIN if kind is None else ENDS_SOONER)
        for child in self._running:
            try:
                child.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            if child.stdout is not None:
                child.stdout.close()


def nginx_config(folder: Path, port: int, services: Sequence[int]) -> str:
    """Write a configuration that spreads requests. None is sent to a second service: it could be counted twice."""
    servers = " ".join(f"server 127.0.0.1:{service} max_fails=0;" for service in services)
    location = """\
location / {
            proxy_pass http://services; proxy_http_version 1.1; proxy_set_header Connection close;
            proxy_next_upstream off; proxy_connect_timeout 60s; proxy_read_timeout 120s;
        }"""
    return nginx_server(folder, port, location, f"upstream services {{ {servers} }}")


def nginx_server(folder: Path, port: int, locations: str, upstream: str = "") -> str:
    """Write a configuration that listens on loopback only and touches no file outside ``folder``."""
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = " ".join(f'{kind}_temp_path "{folder}/{kind}";' for kind in kinds)
    return f"""\
daemon off; master_process off; pid "{folder}/nginx.pid"; error_log stderr warn;
events {{ worker_connections 16384; }}
http {{
    access_log off; {paths}
    {upstream}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        {locations}
    }}
}}
"""


def free_port() -> int:
    """Return a free loopback port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _first_line_as_port(child: subprocess.Popen[bytes], log: Path) -> int:
    assert child.stdout is not None
    too_late = threading.Timer(STARTS_WITHIN, child.kill)
    too_late.daemon = True
    too_late.start()
    try:
        line = child.stdout.readline()
    finally:
        too_late.cancel()
    if not line:
        raise DemoError(f"a service did not start: {_tail(log)}")
    return int(line)


def _serves(child: subprocess.Popen[bytes], port: int) -> bool:
    until = time.monotonic() + STARTS_WITHIN
    while child.poll() is None and time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.01)
        else:
            return child.poll() is None
    return False


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
