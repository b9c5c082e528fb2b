"""Proxies before the nodes of a Redlock."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager

from leasehold_lab.proxy.proxy import FaultProxy


@contextmanager
def proxies(nodes, count):
    """Put a proxy before the first ``count`` nodes; yield them, and the URL of all."""
    with ExitStack() as stack:
        fault_proxies = [stack.enter_context(FaultProxy(node.port)) for node in nodes.nodes[:count]]
        ports = [proxy.port for proxy in fault_proxies] + [node.port for node in nodes.nodes[count:]]
        yield fault_proxies, "redlock://" + ",".join(f"127.0.0.1:{port}" for port in ports)
