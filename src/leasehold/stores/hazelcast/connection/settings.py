"""How to reach Hazelcast: members, the cluster's name, credentials, TLS, and the CP group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from leasehold._url import Secret, StoreURL, Veiled, address, switch
from leasehold.stores._common.drivers import members, refuse_half_credentials, tls

PORT = 5701

CLUSTER = "dev"
"""The name of a cluster whose configuration gives none."""

GROUP = "default"
"""The CP group of a lock whose name gives none."""

TLS_FILES = {"ssl_ca_certs": "ssl_cafile", "ssl_certfile": "ssl_certfile", "ssl_keyfile": "ssl_keyfile"}
"""Options of TLS that the driver takes as they are, with its names."""

OPTIONS = ("group", "ssl_check_hostname", *TLS_FILES)


@dataclass(frozen=True, slots=True)
class Settings:
    """How to reach a cluster. Its repr has no secret; `Veiled` cannot be pickled.

    Attributes:
        hosts: members that are known; the driver finds the others.
        cluster: its name.
        group: the CP group that has the locks.
        username: for a cluster with security.
        password: the same.
        tls: keyword arguments of the driver for TLS; empty for none.
    """

    hosts: tuple[tuple[str, int], ...]
    cluster: str = CLUSTER
    group: str = GROUP
    username: str | None = None
    password: Secret | None = None
    tls: Mapping[str, Any] = field(default_factory=Veiled, repr=False)

    @property
    def where(self) -> str:
        """For messages to people: hosts and ports."""
        return ",".join(address(host, port) for host, port in self.hosts)


def from_url(url: StoreURL) -> Settings:
    """Read ``hazelcast://user:password@h1,h2,h3/cluster?group=…`` and ``hazelcasts://`` (TLS).

    Raises:
        ValueError: an option is unknown or has a value that it cannot have.
    """
    secure = url.scheme == "hazelcasts"
    url.refuse_options(OPTIONS, secure="" if secure else "hazelcasts")
    hosts = members(url, PORT)
    if "/" in url.path:
        raise ValueError(f"the path of a {url.scheme} URL is the name of the cluster, which has no slash here")
    if any(":" in host for host, _ in url.hosts):
        raise ValueError(
            f"a {url.scheme} URL cannot have an IPv6 address: the driver connects over IPv4; name the host"
        )
    refuse_half_credentials(url)
    group = url.options.get("group", GROUP).strip()
    if not group or "@" in group:
        raise ValueError(f"option 'group' in the {url.scheme} URL is a name without '@'")
    if group.lower() == "metadata":
        raise ValueError("the CP group METADATA has no locks; name another group= in the URL")
    return Settings(
        hosts,
        url.path or CLUSTER,
        GROUP if group.lower() == GROUP else group,
        url.username,
        url.password,
        tls(url, TLS_FILES, ssl_enabled=True, ssl_check_hostname=switch(url, "ssl_check_hostname", "true"))
        if secure
        else Veiled(),
    )
