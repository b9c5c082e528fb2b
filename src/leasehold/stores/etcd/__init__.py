"""The etcd store: locks in the layout of Go's ``concurrency`` package and ``etcdctl lock``, over the JSON gateway."""

from __future__ import annotations

from dataclasses import dataclass

from leasehold._runtimes.base import Runtime
from leasehold._url import StoreURL
from leasehold.stores.etcd.connection import settings
from leasehold.stores.etcd.connection.settings import Settings
from leasehold.stores.etcd.store import EtcdStore


@dataclass(frozen=True)
class Etcd:
    """Opens the locks of one cluster."""

    settings: Settings

    def open(self, runtime: Runtime, namespace: str) -> EtcdStore:
        """Open the store; it connects at the first use."""
        return EtcdStore(runtime, self.settings, namespace)


def from_url(url: StoreURL) -> Etcd:
    """Read a URL: ``etcd://h1,h2,h3`` or ``etcds://``."""
    return Etcd(settings.from_url(url))
