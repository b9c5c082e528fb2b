"""Imports go down only, and the machine is touched only where it is meant to be."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import leasehold

ROOT = Path(leasehold.__file__).parent

VALUES = {"errors", "_model", "_rules"}

MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "_model": set(),
    "_rules": {"_model"},
    "_validate": {"_model"},
    "_inspection": {"_model"},
    "_url": {"errors"},
    "_runtimes": {"_runtimes", "_model"},
    "events": {"errors"},
    "store_api": {"_runtimes.base", "_url", *VALUES},
    "stores": {"stores", "store_api", "_url", "_runtimes.base", "_runtimes.clock", "_runtimes.log", *VALUES},
    "layouts": {"layouts", "stores", "store_api", "_url", "_runtimes.base", *VALUES},
    "_engine": {"_engine", "events", "store_api", "_runtimes.base", "_runtimes.log", "_runtimes.process", *VALUES},
    "primitives": {
        "primitives",
        "_engine",
        "events",
        "store_api",
        "_validate",
        "_runtimes.base",
        "_runtimes.blocks",
        "_runtimes.log",
        *VALUES,
    },
    "observability": {"observability", "events", "_runtimes.base", "_runtimes.log"},
    "guards": {"guards", "primitives", "_engine", "stores", "store_api", "_url", "_runtimes.base", *VALUES},
    "client": {
        *{"client", "primitives", "_engine", "events", "observability", "_inspection", "_validate", "_runtimes"},
        *{"store_api", "_url", "stores.registry", *VALUES},
    },
    "postgres": {"guards", "_validate", "errors", "stores._sql"},
    "testing": {"client", "_inspection", "primitives", "stores.memory", "_runtimes", "_validate", *VALUES},
    "_pytest_plugin": {"testing"},
    "tables": {"_runtimes", "stores.registry", "stores._sql", "_url", "store_api", *VALUES},
    "__init__": {"client", "errors", "_inspection", "primitives"},
}
"""By file or folder of the package, what it may import of the package; ``a.b`` is that module alone.

Not listed is the edge of the package, which may use all of it: the command line, the console and the integrations.
"""

EDGES = {"cli", "__main__", "integrations", "ui"}

THIRD_PARTY = {*EDGES, "observability", "stores", "_pytest_plugin"}
"""What is imported only where the third party is installed."""

MACHINE = {"asyncio", "threading", "time", "socket", "select", "selectors", "socketserver", "concurrent", "queue"}
"""Modules that wait, start threads or tasks, or use the network."""

MAY_TOUCH = {"_runtimes", *EDGES}

NETWORK = ("/connection/", "stores/etcd/http/")
"""Folders of stores that talk to the network."""

OWN = {
    "stores/sqlite/database.py": {"threading"},
    "stores/sqlite/busy_wait.py": {"time"},
    "stores/sqlite/waiting.py": {"socket", "threading", "time"},
    "observability/_one_at_a_time.py": {"threading"},
    "observability/history.py": {"time"},
    "observability/prometheus.py": {"threading", "time"},
}
"""Files of stores that own a thread, a socket, or a file which others wait for, and sinks with a mutex or a clock."""

OWN_LOGGERS = {
    "_runtimes/log.py",
    "cli/store.py",  # it is switched off there
    "ui/breaking.py",  # nothing is broken if there is no record of it
}
"""Files that use the logger itself."""

FILES = sorted(ROOT.rglob("*.py"))


@cache
def imports(path: Path) -> frozenset[str]:
    """Return the full name of each module that a file imports, wherever in the file, if only for its types."""
    return frozenset(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports are not used"
            yield from (_module(node.module or "", alias.name) for alias in node.names)


def _module(package: str, name: str) -> str:
    """Return what ``from package import name`` imports: a module of the package, or the package itself."""
    inside = ROOT.parent.joinpath(*package.split("."))
    is_module = (inside / name).is_dir() or (inside / f"{name}.py").is_file()
    return f"{package}.{name}" if is_module else package


def part(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_every_part_has_its_place() -> None:
    parts = {part(path) for path in FILES}
    assert parts <= MAY_IMPORT.keys() | EDGES


def test_imports_go_down_only() -> None:
    for path in FILES:
        if part(path) in EDGES:
            continue
        allowed = MAY_IMPORT[part(path)]
        for module in imports(path):
            if module.partition(".")[0] == "leasehold":
                inside = module.split(".")[1:]
                assert inside, f"{shown(path)}: {module} is the public face, for users"
                assert {inside[0], ".".join(inside[:2])} & allowed, f"{shown(path)} must not import {module}"


def test_no_two_modules_need_each_other() -> None:
    """Within a part, too, there is an order in which the files can be read."""
    names = {_name(path): path for path in FILES}
    needs = {name: {*imports(path)} & names.keys() - {name} for name, path in names.items()}
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_only_some_parts_touch_the_machine() -> None:
    for path in FILES:
        if part(path) not in MAY_TOUCH and not any(folder in shown(path) for folder in NETWORK):
            touched = {module.partition(".")[0] for module in imports(path)} & MACHINE
            assert touched <= OWN.get(shown(path), set()), shown(path)


def test_the_package_logs_so_that_no_filter_or_handler_can_end_its_jobs() -> None:
    for path in FILES:
        if shown(path) not in OWN_LOGGERS:
            assert "getLogger" not in path.read_text(encoding="utf-8"), f"{shown(path)}: use leasehold._runtimes.log"


def test_the_core_needs_no_third_party() -> None:
    for path in FILES:
        if part(path) not in THIRD_PARTY:
            tops = {module.partition(".")[0] for module in imports(path)}
            assert tops <= {"leasehold", *sys.stdlib_module_names}, shown(path)


def test_a_bare_import_brings_no_driver() -> None:
    code = "import sys, leasehold; print([m for m in ('redis', 'hiredis', 'click', 'sqlite3') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_client_brings_what_its_deployment_needs() -> None:
    code = """if True:
        import sys
        from leasehold import Client
        for url in (
            "redis://h",
            "redis+sentinel://h,i,j/m",
            "redis+cluster://h",
            "redlock://h,i,j",
        ):
            with Client.from_url(url):
                pass
            names = "sentinel.store", "cluster.store", "redlock.store", "redlock.node"
            print(*(name for name in names if f"leasehold.stores.redis.{name}" in sys.modules))
        """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "",
        "sentinel.store",
        "sentinel.store cluster.store",
        "sentinel.store cluster.store redlock.store redlock.node",
    ]
