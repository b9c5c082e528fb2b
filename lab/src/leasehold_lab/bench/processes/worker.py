"""The process of one contestant: it imports the library once, and forks for each trial, so that no state is inherited.

With another interpreter it measures the libraries that are installed there. It loads leasehold from the files of this
package, and nothing else that is installed next to them.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import resource
import sys
import traceback
from importlib import metadata
from pathlib import Path
from types import ModuleType

import leasehold
import leasehold_lab
from leasehold_lab.bench.subjects.base import Scope
from leasehold_lab.bench.trials import handover, holding, pairs
from leasehold_lab.bench.trials.trial_pipe import Task, TrialPipe
from leasehold_lab.lifetime import end_with

BOOT = """
import importlib.util, sys
for name, init, folder in {packages!r}:
    spec = importlib.util.spec_from_file_location(name, init, submodule_search_locations=[folder])
    package = importlib.util.module_from_spec(spec)
    sys.modules[name] = package
    spec.loader.exec_module(package)
from leasehold_lab.bench.processes.worker import main
main(sys.argv[1], sys.argv[2], sys.argv[3])
"""
"""Loads leasehold and its laboratory from their files, without other packages from the same folder."""

NO_DRIVER = ("", "")

DRIVERS = {
    **dict.fromkeys(("redis", "coredis", "filelock", "portalocker", "kazoo"), NO_DRIVER),
    **dict.fromkeys(("sqlalchemy-dlock", "pals"), ("SQLAlchemy", "sqlalchemy")),
    "django-pglocks": ("Django", "django"),
}
"""The driver of each library: its title and package. All other libraries use redis-py."""

TRIALS = {"pairs": pairs, "handover": handover, "held": holding, "waiting": holding}


def command(python: str, module: str, requires: str, package: str) -> list[str]:
    """Return the command line that starts a worker."""
    files = [str(package.__file__) for package in (leasehold, leasehold_lab)]
    packages = [(Path(file).parent.name, file, str(Path(file).parent)) for file in files]
    return [python, "-c", BOOT.format(packages=packages), module, requires, package]


def main(module: str, requires: str, package: str) -> None:
    """Send ``hello``, then run one trial for each line of input."""
    answers = os.dup(1)
    os.dup2(2, 1)  # the output of a library must not be taken for an answer
    pipe = TrialPipe(0, answers)
    allow_many_files()
    try:
        if requires:
            importlib.import_module(requires)
        subject = importlib.import_module(f"leasehold_lab.bench.subjects.{module}")
    except ImportError as error:
        pipe.send(step="hello", missing=str(error))
        return
    pipe.send(step="hello", version=version(package), runs=f"Python {sys.version.split()[0]}")
    worker = os.getpid()
    while (asked := pipe.receive()) is not None:
        task = Task(**asked)
        child = os.fork()
        if child == 0:
            end_with(worker)
            run(subject, task, pipe)
        _, status = os.waitpid(child, 0)
        if status:
            pipe.send(step="error", error=f"the trial's process ended with status {status}")


def version(package: str) -> str:
    """Return the version of a package and of its driver."""
    if not package:
        return ""
    title, driver = DRIVERS.get(package, ("redis-py", "redis"))
    try:
        alongside = f" with {title} {metadata.version(driver)}" if driver else ""
    except metadata.PackageNotFoundError:
        alongside = ""
    return metadata.version(package) + alongside


def run(subject: ModuleType, task: Task, pipe: TrialPipe) -> None:
    """Run one trial in this process, and end it."""
    try:
        if task.cores:
            os.sched_setaffinity(0, task.cores)
        scope = Scope(task.url, task.namespace, task.concurrency, task.folder)
        trial = TRIALS[task.trial]
        if task.mode == "asyncio":
            asyncio.run(trial.awaiting(subject, scope, task, pipe))
        else:
            trial.blocking(subject, scope, task, pipe)
    except BaseException as error:
        traceback.print_exc()
        pipe.send(step="error", error=f"{type(error).__name__}: {error}")
    finally:
        sys.stderr.flush()
        os._exit(0)


def allow_many_files() -> None:
    """Raise the limit of open files of this process to the most that the system allows."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
