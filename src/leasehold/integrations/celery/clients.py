"""One client for each process and store, made at its first use, so after the fork, and closed when the worker ends.

A process of the prefork pool ends by `os._exit()`, without `atexit`; Celery's signal is the only place to close there,
and to write figures for Prometheus.
Other processes, as those of a web server that sends tasks, close their client when the interpreter ends.
"""

# pyright: basic
# Celery has no types: each of its names is unknown to a strict check.

from __future__ import annotations

import os
import sys
from types import MethodType
from typing import Any, cast

from celery import signals
from celery.utils.imports import symbol_by_name

from leasehold import Client

_clients: dict[tuple[int, str | None, str, Any], Client] = {}
"""By process, URL, namespace and observer. A forked child finds those of its parent here, and leaves them alone."""


def client_of(app: Any) -> Client:
    """Return the client of this process for the store of an app, from ``leasehold_url`` and ``leasehold_namespace``.

    Without ``leasehold_url`` it is that of the environment variable ``LEASEHOLD_URL``, as in `Client.from_url`. Its
    observer is ``leasehold_observer``: a function of one event, or its dotted path.

    Raises:
        ValueError: the URL is malformed, or its scheme or an option of it is unknown.
        TypeError: the observer is no function.
        ImportError, AttributeError: there is nothing at its path.
        MissingDriver: the message says what to install.
    """
    return client_at(app.conf, app.conf.get("leasehold_url"))


def _key_of(given: object) -> object:
    """Return what identifies an observer: two bound methods of one object are equal, and each look may make another."""
    return given if given is None or isinstance(given, str | MethodType) else id(given)  # its client keeps it alive


def client_at(conf: Any, url: str | None) -> Client:
    """Return the client of this process for a store, with the other settings of an app."""
    namespace, given = conf.get("leasehold_namespace") or "default", conf.get("leasehold_observer")
    key = os.getpid(), url, namespace, _key_of(given)
    found = _clients.get(key)
    if found is None:
        observer = None if given is None else cast("Any", symbol_by_name)(given)
        if observer is not None and not callable(observer):
            raise TypeError(f"leasehold_observer must be a function of one event, or its dotted path, not {given!r}")
        made = Client.from_url(url, namespace=namespace, observer=cast("Any", observer))
        found = _clients.setdefault(key, made)  # without a lock, which another thread may hold while we fork
        if found is not made:
            made.close()
    return found


def close_clients(**_: object) -> None:
    """Close all clients of this process, and write what their observers count; the next use makes another client."""
    for key in list(_clients):
        if key[0] == os.getpid():
            _clients.pop(key).close()
    prometheus = sys.modules.get("leasehold.observability.prometheus")  # imported where it is used
    if prometheus is not None:
        prometheus.flush_at_end()


for ending in cast("tuple[Any, ...]", (signals.worker_process_shutdown, signals.worker_shutdown)):
    ending.connect(close_clients, weak=False)
