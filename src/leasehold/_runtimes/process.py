"""Which process this is, and what happens to clients when it forks or ends.

What is registered here is the engine of a client, not the client object: locks and holds refer to their engine, and a
program may keep only them. The references are weak.
"""

from __future__ import annotations

import atexit
import os
import socket
import weakref
from collections.abc import Coroutine
from functools import partial
from typing import Any, Protocol

from leasehold._model import Owner, ticket_id
from leasehold._runtimes.base import Runtime, call_each, run_sync
from leasehold._runtimes.log import log


class ForkAware(Protocol):
    """An object that is notified in the child after a fork."""

    def after_fork(self) -> None: ...


class Closable(Protocol):
    """An object of the blocking flavor that is closed when the interpreter ends."""

    def close(self) -> Coroutine[Any, Any, None]: ...


_forks: weakref.WeakSet[ForkAware] = weakref.WeakSet()
_closes: weakref.WeakSet[Closable] = weakref.WeakSet()
_ending = False


def whoami(runtime: Runtime) -> Owner:
    """Return the name of this client for people: host, process, and eight random characters."""
    return Owner(socket.gethostname()[:64], os.getpid(), ticket_id(runtime.random_bytes(16))[:8])


def notify_after_fork(engine: ForkAware) -> None:
    """Notify ``engine`` in a forked child."""
    _forks.add(engine)


def close_at_exit(engine: Closable) -> None:
    """Close ``engine`` when the interpreter ends, so that its locks are free at once."""
    _closes.add(engine)


def _after_fork() -> None:
    for engine in list(_forks):
        try:
            engine.after_fork()
        except Exception:
            log.exception("%r could not be reset after a fork", engine)


def ending() -> bool:
    """Return whether the interpreter is ending: only daemon threads still run."""
    return _ending


def _at_exit() -> None:
    global _ending
    _ending = True
    call_each(partial(_close, engine) for engine in list(_closes))  # a Ctrl-C in one is raised when all are closed


def _close(engine: Closable) -> None:
    try:
        run_sync(engine.close())
    except (Exception, SystemExit):  # noqa: S110 it ends already: what was not released expires with its lease
        pass


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
