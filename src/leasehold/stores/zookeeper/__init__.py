"""ZooKeeper: locks in an ensemble, shared with Apache Curator."""

from __future__ import annotations

from dataclasses import dataclass, replace

from leasehold._runtimes.base import Runtime
from leasehold._url import StoreURL, Veiled
from leasehold.stores._common.names import DEFAULT
from leasehold.stores.zookeeper.connection import settings as transport_settings
from leasehold.stores.zookeeper.connection.settings import Settings
from leasehold.stores.zookeeper.nodes import encode_part
from leasehold.stores.zookeeper.store import ZooKeeperStore

__all__ = ["ZooKeeper", "ZooKeeperStore", "from_url"]


@dataclass(frozen=True, slots=True)
class ZooKeeper:
    """Opens an ensemble.

    Attributes:
        settings: how to reach it.
        chroot: the node below which all of ours are: empty, or an absolute path without a slash at its end.
        shared: whether the locks are direct children of ``chroot``, without a namespace, as in Spring Integration.
    """

    settings: Settings
    chroot: str = ""
    shared: bool = False

    def open(self, runtime: Runtime, namespace: str) -> ZooKeeperStore:
        """Open the store; the session begins at first use."""
        if self.shared and namespace != DEFAULT:
            raise ValueError(f"namespace={namespace!r} contradicts the empty namespace= in the URL; leave one out")
        return ZooKeeperStore(runtime, "" if self.shared else namespace, self.settings, self.chroot)


def from_url(url: StoreURL) -> ZooKeeper:
    """Read ``zookeeper://h1,h2,h3/chroot``, with ``user:password@`` and options; ``zookeepers://`` for TLS.

    Raises:
        ValueError: an option, the credentials or the chroot cannot be used.
    """
    shared = "namespace" in url.options
    if shared and (url.options["namespace"] or not url.path.strip("/")):
        raise ValueError(
            f"option 'namespace' in the {url.scheme} URL is empty, and needs a path: locks are then the children of "
            "that node; pass any other namespace to the client"
        )
    options = Veiled((key, value) for key, value in url.options.items() if key != "namespace")
    settings = transport_settings.from_url(replace(url, options=options))
    parts = [part for part in url.path.split("/") if part]
    for part in parts:
        if part in (".", "..") or encode_part(part) != part:
            raise ValueError(f"the path of a {url.scheme} URL is a node of ZooKeeper, which cannot have {part!r} in it")
    if parts[:1] == ["zookeeper"]:
        raise ValueError("/zookeeper belongs to the server; name another path in the URL")
    return ZooKeeper(settings, "".join(f"/{part}" for part in parts), shared)
