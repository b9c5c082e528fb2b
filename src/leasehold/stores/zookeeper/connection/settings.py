"""How to reach ZooKeeper: servers, session timeout, TLS, credentials, and the rights on our nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from leasehold._url import Secret, StoreURL, Veiled, address, switch
from leasehold.stores._common.drivers import members, refuse_half_credentials, tls

PORT = 2181
SECURE_PORT = 2281

SESSION_TIMEOUT = 30.0
"""Requested session timeout in seconds; the server grants from 2 to 20 of its ticks."""

ACLS = ("open", "creator", "creator+read")
"""Who may use our nodes: all clients; only our credentials; only our credentials, but all clients may read."""

TLS_OPTIONS = {
    "ssl_ca_certs": "ca",
    "ssl_certfile": "certfile",
    "ssl_keyfile": "keyfile",
    "ssl_keyfile_password": "keyfile_password",
}
"""Options of TLS that kazoo takes as they are, with its names."""

OPTIONS = ("session_timeout", "acl", "auth", "service", "principal", "ssl_check_hostname", *TLS_OPTIONS)


@dataclass(frozen=True, slots=True)
class Settings:
    """How to reach an ensemble. Its repr has no secret; `Veiled` cannot be pickled.

    Attributes:
        hosts: all members that are known.
        session_timeout: seconds to ask for.
        acl: one of `ACLS`.
        digest: user and password for the scheme ``digest``.
        sasl: options of kazoo for SASL.
        tls: keyword arguments of kazoo for TLS; empty for none.
    """

    hosts: tuple[tuple[str, int], ...]
    session_timeout: float = SESSION_TIMEOUT
    acl: str = "open"
    digest: Secret | None = None
    sasl: Mapping[str, Any] = field(default_factory=Veiled, repr=False)
    tls: Mapping[str, Any] = field(default_factory=Veiled, repr=False)

    @property
    def where(self) -> str:
        """For messages to people: hosts and ports."""
        return ",".join(address(host, port) for host, port in self.hosts)


def from_url(url: StoreURL) -> Settings:
    """Read ``zookeeper://user:password@h1,h2/chroot?session_timeout=…`` and ``zookeepers://`` (TLS).

    Raises:
        ValueError: an option is unknown or has a value that it cannot have.
    """
    secure = url.scheme == "zookeepers"
    url.refuse_options(OPTIONS, secure="" if secure else "zookeepers")
    hosts = members(url, SECURE_PORT if secure else PORT)
    digest, sasl = _credentials(url)
    acl = url.options.get("acl", "creator" if digest or sasl else "open")
    if acl not in ACLS:
        raise ValueError(f"option 'acl' in the {url.scheme} URL is one of {', '.join(ACLS)}")
    if acl != "open" and not (digest or sasl or secure):
        raise ValueError(f"acl={acl} needs credentials: write {url.scheme}://user:password@host")
    checked = switch(url, "ssl_check_hostname", "true")
    options = tls(url, TLS_OPTIONS, use_ssl=True, verify_certs=True, check_hostname=checked) if secure else Veiled()
    return Settings(hosts, _timeout(url), acl, digest, sasl, options)


def _timeout(url: StoreURL) -> float:
    text = url.options.get("session_timeout", str(SESSION_TIMEOUT))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 86_400.0:
        raise ValueError(f"option 'session_timeout' in the {url.scheme} URL is seconds, from 0.1 to 86400")
    return seconds


def _credentials(url: StoreURL) -> tuple[Secret | None, Veiled]:
    """Return user and password for the scheme digest, and the options of SASL; at most one of the two."""
    how = url.options.get("auth", "digest")
    if how not in ("digest", "sasl", "gssapi"):
        raise ValueError(f"option 'auth' in the {url.scheme} URL is digest, sasl (DIGEST-MD5) or gssapi (Kerberos)")
    if how == "gssapi":
        options = Veiled(mechanism="GSSAPI", service=url.options.get("service", "zookeeper"))
        if "principal" in url.options:
            options["principal"] = url.options["principal"]
        return None, options
    if "service" in url.options or "principal" in url.options:
        raise ValueError(f"options 'service' and 'principal' in the {url.scheme} URL are for auth=gssapi")
    refuse_half_credentials(url)
    if url.username is None or url.password is None:
        if "auth" in url.options:
            raise ValueError(f"auth={how} needs credentials: write {url.scheme}://user:password@host")
        return None, Veiled()
    if how == "sasl":
        return None, Veiled(mechanism="DIGEST-MD5", username=url.username, password=url.password.reveal())
    if ":" in url.username:
        raise ValueError(f"the user in the {url.scheme} URL has a colon; digest takes what follows for the password")
    return Secret(f"{url.username}:{url.password.reveal()}"), Veiled()
