"""The floor of ZooKeeper: one ephemeral node made and deleted, over a bare session of kazoo."""

from __future__ import annotations

import importlib
from typing import Any

from leasehold._url import parse
from leasehold.stores.zookeeper.connection.settings import from_url
from leasehold_lab.bench.subjects.base import LEASE, Scope, Turn

kazoo_client: Any = importlib.import_module("kazoo.client")
kazoo_errors: Any = importlib.import_module("kazoo.exceptions")


def connect(url: str) -> Any:
    """Start a session."""
    there = parse(url)
    settings = from_url(there)
    client = kazoo_client.KazooClient(
        hosts=settings.where,
        timeout=LEASE,
        auth_data=[("digest", settings.digest.reveal())] if settings.digest else None,
        sasl_options=dict(settings.sasl) or None,
    )
    client.start()
    return client


def folder(scope: Scope) -> str:
    """Return the node below which a trial works."""
    root = parse(scope.url).path.strip("/")
    return f"/{root}/{scope.namespace}" if root else f"/{scope.namespace}"


class Blocking:
    """See `leasehold_lab.bench.subjects.base.Session`. All threads share one session, as kazoo's users do."""

    def __init__(self, scope: Scope) -> None:
        self._client = connect(scope.url)
        self._folder = folder(scope)
        self._client.ensure_path(self._folder)

    def turn(self, name: str) -> Turn:
        client, path = self._client, f"{self._folder}/{name}"

        def take() -> bool:
            try:
                client.create(path, b"", ephemeral=True)
            except kazoo_errors.NodeExistsError:
                return False
            return True

        return take, lambda: client.delete(path)

    def refused(self, name: str) -> bool:
        return not self.turn(name)[0]()

    def close(self) -> None:
        self._client.stop()
        self._client.close()


blocking = Blocking
