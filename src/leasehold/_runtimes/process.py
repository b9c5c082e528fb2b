"""Which process this is, and what happens to clients when it forks or ends."""

from __future__ import annotations

import atexit
import logging
import os
import socket
import weakref
from typing import Protocol

from leasehold._model import Owner, ticket_id
from leasehold._runtimes.base import Runtime


class ForkAware(Protocol):
    """An object that is notified in the child after a fork."""

    def _after_fork(self) -> None: ...


class Closable(Protocol):
    """An object that is closed when the interpreter ends."""

    def close(self) -> None: ...


log = logging.getLogger("leasehold")

_forks: weakref.WeakSet[ForkAware] = weakref.WeakSet()
_closes: weakref.WeakSet[Closable] = weakref.WeakSet()
_ending = False


def whoami(runtime: Runtime) -> Owner:
    """Return the name of this client for people: host, process, and eight random characters."""
    return Owner(socket.gethostname()[:64], os.getpid(), ticket_id(runtime.random_bytes(16))[:8])


def notify_after_fork(client: ForkAware) -> None:
    """Notify ``client`` in a forked child."""
    _forks.add(client)


def close_at_exit(client: Closable) -> None:
    """Close ``client`` when the interpreter ends, so that its locks are free at once."""
    _closes.add(client)


def _after_fork() -> None:
    for client in list(_forks):
        try:
            client._after_fork()
        except Exception:
            log.exception("%r could not be reset after a fork", client)


def ending() -> bool:
    """Return whether the interpreter is ending: only daemon threads still run."""
    return _ending


def _at_exit() -> None:
    global _ending
    _ending = True
    for client in list(_closes):
        try:
            client.close()
        except Exception:  # noqa: S110 the interpreter ends: what was not released now expires with its lease
            pass


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
