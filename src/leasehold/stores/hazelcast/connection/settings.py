"""How to reach Hazelcast: members, the cluster's name, credentials, TLS, and which locks."""

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

MAP = "leasehold"
"""The map whose keys are locked without CP, unless the URL names another."""

TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname")

OPTIONS = ("group", "without_cp", "map", *TLS_OPTIONS)


@dataclass(frozen=True, slots=True)
class Settings:
    """How to reach a cluster. Its repr has no secret.

    Attributes:
        hosts: members that are known; the driver finds the others.
        cluster: its name.
        group: the CP group that has the locks.
        map: the map whose keys are locked instead, where the user does without CP; else empty.
        username: for a cluster with security.
        password: the same.
        tls: keyword arguments of the driver for TLS; empty for none.
    """

    hosts: tuple[tuple[str, int], ...]
    cluster: str = CLUSTER
    group: str = GROUP
    map: str = ""
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
    without_cp = _switch(url, "without_cp")
    locks = {"group": GROUP, "map": MAP}
    for option, needed in (("group", not without_cp), ("map", without_cp)):
        if option in url.options and not needed:
            raise ValueError(
                f"option {option!r} in the {url.scheme} URL is for locks {_WITH[without_cp]}; leave it out"
            )
        locks[option] = url.options.get(option, locks[option]).strip()
        if not locks[option] or "@" in locks[option]:
            raise ValueError(f"option {option!r} in the {url.scheme} URL is a name without '@'")
    if locks["group"].lower() == "metadata":
        raise ValueError("the CP group METADATA has no locks; name another group= in the URL")
    return Settings(
        hosts,
        url.path or CLUSTER,
        GROUP if locks["group"].lower() == GROUP else locks["group"],
        locks["map"] if without_cp else "",
        url.username,
        url.password,
        _tls(url) if secure else Veiled(),
    )


_WITH = {True: "in the CP subsystem, and without_cp=true does without it", False: "with without_cp=true"}


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
