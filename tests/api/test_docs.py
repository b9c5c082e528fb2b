"""What the documentation shows is run: blocks of Python, ``leasehold`` command lines, examples in docstrings."""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import logging
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import leasehold
from leasehold.cli.options import Exit
from leasehold.stores import memory
from leasehold_lab.servers import EtcdServer, RedisServer, ZooKeeperServer
from support.modules import importable

TOP = Path(__file__).parents[2]
PAGES = [TOP / "README.md", *sorted((TOP / "docs").rglob("*.md"))]

BLOCK = re.compile(
    r"(?P<mark><!-- not run: [^>]+ -->\s*\n)?^(?P<indent> *)```(?P<language>\w+)[^\n]*\n(?P<body>.*?)^(?P=indent)```",
    re.MULTILINE | re.DOTALL,
)
"""A fenced block; ``<!-- not run: reason -->`` in the line before leaves it out."""

EXPORT = re.compile(r"^export (\w+)=(\S+)", re.MULTILINE)

PROMPT = re.compile(r"^(?:\$ )?(leasehold .*?)\s*(?: # .*)?$", re.MULTILINE)

MISTAKES = {Exit.MISSING, Exit.USAGE, Exit.INTERNAL, Exit.NOT_EXECUTABLE, Exit.NOT_FOUND, 2}
"""Exit codes that say that the example is wrong, and not that there is nothing to show or something to warn of."""


def blocks(*languages: str) -> Iterator[Any]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in BLOCK.finditer(text):
            if found["language"] in languages and not found["mark"]:
                line = text.count("\n", 0, found.start("body")) + 1
                yield pytest.param(textwrap.dedent(found["body"]), id=f"{page.relative_to(TOP)}:{line}")


def docstrings() -> Iterator[Any]:
    for module_name in importable():
        module = importlib.import_module(module_name)
        classes = [
            thing for thing in vars(module).values() if inspect.isclass(thing) and thing.__module__ == module_name
        ]
        for owner in (module, *classes):
            for number, found in enumerate(BLOCK.finditer(inspect.getdoc(owner) or "")):
                if found["language"] == "python" and not found["mark"]:
                    name = f"{module_name}.{owner.__name__}" if inspect.isclass(owner) else module_name
                    yield pytest.param(owner, textwrap.dedent(found["body"]), id=f"{name}-{number}")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands for a user's home and working directory, and a memory in which no other example ran."""
    monkeypatch.setattr(memory, "_spaces", memory.Spaces())  # a client that is left keeps "memory:" alive
    monkeypatch.setattr(logging.getLogger("leasehold"), "handlers", [])  # what a page adds is gone after it
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("LEASEHOLD_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    for script in ("report.sh", "backup.sh"):
        (tmp_path / script).write_text("#!/bin/sh\nexit 0\n")
        (tmp_path / script).chmod(0o755)
    return tmp_path


@pytest.fixture
def substituted(place: Path, request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Put the tests' own servers and folders in the place of what the documentation names."""

    def substitute(text: str) -> str:
        if "redis://localhost:6379" in text:
            server: RedisServer = request.getfixturevalue("redis_server")
            text = re.sub(r"redis://localhost:6379(/\d+)?", server.url, text)
        if "mysql://app:secret@localhost:3306/app" in text:
            text = text.replace("mysql://app:secret@localhost:3306/app", request.getfixturevalue("mariadb_url"))
        if "etcd://localhost:2379" in text:
            etcd: EtcdServer = request.getfixturevalue("etcd_server")
            text = text.replace("etcd://localhost:2379", f"{etcd.url}/{place.name}")
        if "zookeeper://localhost:2181" in text:
            zookeeper: ZooKeeperServer = request.getfixturevalue("zookeeper_server")
            text = text.replace("zookeeper://localhost:2181", zookeeper.url)
        text = text.replace("acquire(timeout=2)", "acquire(timeout=60)")  # a busy server may answer later
        return text.replace("/var/lib/app/", f"{place}/")

    return substitute


def run(code: str, where: str, names: dict[str, Any]) -> None:
    compiled = compile(code, where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if compiled.co_flags & inspect.CO_COROUTINE:
        asyncio.run(_awaited(compiled, names))
    else:
        exec(compiled, names)


async def _awaited(compiled: Any, names: dict[str, Any]) -> None:
    client = leasehold.AsyncClient.from_url("memory:")
    async with client:
        names.update(client=client, locks=client, sell=_sell_async)
        await eval(compiled, names)


def _sell(item: int, *, fence: int) -> None:
    assert fence > 0


async def _sell_async(item: int, *, fence: int) -> None:
    assert fence > 0


@pytest.mark.parametrize("code", list(blocks("python")))
def test_a_block_of_python_runs(code: str, substituted: Callable[[str], str], request: pytest.FixtureRequest) -> None:
    run(substituted(code), request.node.callspec.id, {"__name__": "docs"})  # no other name: what is pasted runs


@pytest.mark.parametrize(("owner", "code"), list(docstrings()))
def test_an_example_in_a_docstring_runs(owner: Any, code: str, substituted: Callable[[str], str]) -> None:
    home = sys.modules[owner.__module__] if inspect.isclass(owner) else owner
    names = {
        **{name: getattr(leasehold, name) for name in leasehold.__all__},
        "RedisServer": RedisServer,
        **vars(home),
        "__name__": "docs",
        "sell": _sell,
    }
    with leasehold.Client.from_url("memory:") as client:
        names.update(client=client, locks=client)
        run(substituted(code), home.__name__, names)


@pytest.mark.parametrize("text", list(blocks("console", "shell", "sh", "bash")))
def test_a_command_line_runs(text: str, substituted: Callable[[str], str], place: Path) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    text = substituted(text)
    environment |= dict(EXPORT.findall(text))
    for line in PROMPT.findall(text):
        command = [sys.executable, "-m", *shlex.split(line, comments=True)]
        done = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment, timeout=60, check=False
        )
        said = f"{line}\nexit code {done.returncode}\n{done.stdout}{done.stderr}"
        assert done.returncode not in MISTAKES, said
        assert "Traceback" not in done.stderr, said


def test_what_is_left_out_has_a_reason() -> None:
    for page in PAGES:
        for mark in re.findall(r"<!-- not run.*?-->", page.read_text(encoding="utf-8")):
            assert re.fullmatch(r"<!-- not run: .{10,} -->", mark), f"{page.name}: {mark}"


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s#]+)(?:#[^)]*)?\)", text):
            if not target.startswith(("http://", "https://", "mailto:")):
                assert (page.parent / target).exists(), f"{page.relative_to(TOP)} links to {target}"
