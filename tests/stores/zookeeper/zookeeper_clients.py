"""Clients behind a proxy, and the paths of their locks."""

from __future__ import annotations

from leasehold.client import AsyncClient
from leasehold.stores import registry
from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.runtimes.harnesses import Harness

SESSION = 2.0
"""Seconds of a session timeout: twice the shortest that the server grants, which is two ticks, 1 s."""

NOISE = 1.0


def client_of(
    harness: Harness, proxy: FaultProxy, namespace: str, *, timeout: float = SESSION, **options: object
) -> AsyncClient:
    url = f"zookeeper://127.0.0.1:{proxy.port}/faults?session_timeout={timeout:g}"
    return harness.client(registry.opener(url), namespace=namespace, **options)


def path(namespace: str, name: str = "a") -> str:
    return f"/faults/{namespace}/{name}"
