"""The process that runs all scenarios with one library. It imports the library once, and forks for each scenario."""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
import time
import traceback
from importlib import import_module, metadata

from museum import scenarios  # noqa: F401 - registers them
from museum.catalogue import EXHIBITS, WITHIN, run_scenario
from museum.port import Place


def main(module: str, text: str) -> None:
    """Print a line about the library, and one for each flavor and scenario."""
    spec = json.loads(text)
    answers = os.dup(1)
    os.dup2(2, 1)  # the output of a library must not mix with the answers
    try:
        subject = import_module(f"museum.subjects.{module}")
    except ImportError as error:
        _report(answers, missing=str(error))
        return
    _report(answers, version=version(subject.PACKAGE), python=platform.python_version())
    for flavor, variant in subject.VARIANTS.items():
        if variant.backend not in spec["ports"] and variant.backend != "file":
            continue
        place = Place(spec["ports"].get(variant.backend, 0), spec["folder"])
        for name in EXHIBITS:
            _run_in_child(answers, module, flavor, name, place)


def version(package: str) -> str:
    """Return the version of a package, with that of the driver that it is installed with."""
    alongside = "" if package in ("redis", "coredis", "filelock", "kazoo", "aioredlock") else metadata.version("redis")
    return metadata.version(package) + (f" (redis-py {alongside})" if alongside else "")


def _run_in_child(answers: int, module: str, flavor: str, name: str, place: Place) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            seen = run_scenario(EXHIBITS[name], module, flavor, place)
            _report(answers, flavor=flavor, exhibit=name, verdict=seen.verdict, words=seen.words)
        except BaseException as error:
            traceback.print_exc()
            last = traceback.extract_tb(error.__traceback__)[-1]
            _report(answers, flavor=flavor, exhibit=name, error=f"{type(error).__name__}: {error} ({last.name})")
        finally:
            sys.stderr.flush()
            os._exit(0)
    until = time.monotonic() + WITHIN + 10
    while not os.waitpid(pid, os.WNOHANG)[0]:
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            _report(answers, flavor=flavor, exhibit=name, error="hangs")
            return
        time.sleep(0.01)


def _report(answers: int, **facts: object) -> None:
    os.write(answers, f"{json.dumps(facts)}\n".encode())
