"""The programs of other libraries, built by their languages' tools from their registries, once for all runs."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest

from leasehold_lab.servers import MissingServer, RedisServer
from support import lock_peers
from support.plugins import foreign_table

Share = Callable[..., AbstractContextManager[lock_peers.Peers]]

PEERS = Path(__file__).parent / "peers"

PACKAGES = {"mvn": "maven", "java": "default-jdk-headless", "go": "golang-go", "npm": "npm", "node": "nodejs"}
"""Tool to the package of Debian that has it."""


JAVA = ["java", "-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]


@dataclass(frozen=True, slots=True)
class Program:
    """A program: the tools that it needs, the command that builds it in a copy of its folder, and how it is run."""

    tools: Sequence[str]
    build: Sequence[str]
    run: Callable[[Path], list[str]]


GOALS = ("package", "dependency:copy-dependencies", "-DoutputDirectory=target/jars")


def java(library: str) -> Program:
    """Return a program in Java, whose main class is ``Peer``."""
    return Program(
        ("mvn", "java"),
        ("mvn", "--quiet", "--batch-mode", *GOALS),
        lambda folder: [*JAVA, "-cp", f"{folder}/target/{library}-peer-1.jar:{folder}/target/jars/*", "Peer"],
    )


PROGRAMS = {
    "redisson": java("redisson"),
    "spring": java("spring"),
    "hazelcast": java("hazelcast"),
    "hazelcast-5.5": java("hazelcast-5.5"),
    "redsync": Program(("go",), ("go", "build", "-o", "peer", "."), lambda folder: [str(folder / "peer")]),
    "node-redlock": Program(
        ("npm", "node"),
        ("npm", "install", "--no-fund", "--no-audit", "--silent"),
        lambda folder: ["node", str(folder / "peer.js")],
    ),
}
"""By library, as the folder of its sources is called."""


@pytest.fixture(autouse=True)
def figures(request: pytest.FixtureRequest) -> Iterator[None]:
    """Report what a test has measured to the run, for the table in the documentation."""
    lock_peers.noted.clear()
    yield
    request.node.user_properties += [(foreign_table.FIGURES, one) for one in lock_peers.noted]


@pytest.fixture(scope="session")
def program(pytestconfig: pytest.Config) -> Callable[[str], list[str]]:
    """Return a function from a library to the command of its program, which is built if need be."""
    assert pytestconfig.cache is not None
    cache = pytestconfig.cache.mkdir("foreign")
    return lambda library: _built(library, PROGRAMS[library], cache)


@pytest.fixture
def share(redis_server: RedisServer, namespace: str, commands: dict[str, list[str]]) -> Share:
    """Return a function from a layout, or a URL, and a lease to a group of processes that share a lock there."""
    return lambda layout, lease=3.0: lock_peers.lock_peers(redis_server, layout, namespace, lease, commands)


def _built(library: str, wanted: Program, cache: Path) -> list[str]:
    missing = [tool for tool in wanted.tools if shutil.which(tool) is None]
    if missing:
        packages = " ".join(PACKAGES[tool] for tool in missing)
        raise MissingServer(f"no {' and no '.join(missing)} to run {library}; on Debian: apt-get install {packages}")
    sources = sorted(path for path in (PEERS / library).iterdir() if path.is_file())
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    folder = cache / f"{library}-{digest}"
    with (cache / f"{library}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other workers of this run build the same
        if not (folder / "built").exists():
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(PEERS / library, folder)
            done = subprocess.run(wanted.build, cwd=folder, capture_output=True, text=True, timeout=570, check=False)
            assert done.returncode == 0, f"{library} was not built:\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
            (folder / "built").touch()
    return wanted.run(folder)
