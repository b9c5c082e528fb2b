"""How to reach Hazelcast: members, the cluster's name, credentials, TLS, and the CP group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from leasehold._url import Secret, StoreURL, Veiled

PORT = 5701

CLUSTER = "dev"
"""The name of a cluster whose configuration gives none."""

GROUP = "default"
"""The CP group of a lock whose name gives none."""

TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname")

OPTIONS = ("group", *TLS_OPTIONS)


@dataclass(frozen=True, slots=True)
class Settings:
    """How to reach a cluster. Its repr has no secret.

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
        return ",".join(f"{host}:{port}" for host, port in self.hosts)

    def __reduce__(self) -> str:
        raise TypeError("settings cannot be pickled: they may have a password")


def from_url(url: StoreURL) -> Settings:
    """Read ``hazelcast://user:password@h1,h2,h3/cluster?group=…`` and ``hazelcasts://`` (TLS).

    Raises:
        ValueError: an option is unknown or has a value that it cannot have.
    """
    secure = url.scheme == "hazelcasts"
    url.refuse_options(OPTIONS, secure="" if secure else "hazelcasts")
    if not url.hosts and url.path and not url.path.startswith("/"):
        raise ValueError(f"a {url.scheme} URL has two slashes before its hosts; write {url.scheme}://localhost:{PORT}")
    if "/" in url.path:
        raise ValueError(f"the path of a {url.scheme} URL is the name of the cluster, which has no slash here")
    if any(":" in host for host, _ in url.hosts):
        raise ValueError(
            f"a {url.scheme} URL cannot have an IPv6 address: the driver connects over IPv4; name the host"
        )
    if (url.username is None) is not (url.password is None):
        raise ValueError(f"the {url.scheme} URL has a user without a password or the other way round; write both")
    hosts = tuple((host, port or PORT) for host, port in url.hosts) or (("localhost", PORT),)
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
        _tls(url) if secure else Veiled(),
    )


def _switch(url: StoreURL, option: str, default: str = "false") -> bool:
    text = url.options.get(option, default)
    if text not in ("true", "false"):
        raise ValueError(f"option {option!r} in the {url.scheme} URL is true or false")
    return text == "true"


def _tls(url: StoreURL) -> Veiled:
    if ("ssl_certfile" in url.options) is not ("ssl_keyfile" in url.options):
        raise ValueError(f"options 'ssl_certfile' and 'ssl_keyfile' in the {url.scheme} URL go together")
    tls = Veiled(ssl_enabled=True, ssl_check_hostname=_switch(url, "ssl_check_hostname", "true"))
    theirs = {"ssl_ca_certs": "ssl_cafile", "ssl_certfile": "ssl_certfile", "ssl_keyfile": "ssl_keyfile"}
    tls.update({name: url.options[option] for option, name in theirs.items() if option in url.options})
    return tls
