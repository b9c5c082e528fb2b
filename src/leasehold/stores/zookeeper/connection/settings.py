"""How to reach ZooKeeper: servers, session timeout, TLS, credentials, and the rights on our nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from leasehold._url import Secret, StoreURL, Veiled

PORT = 2181
SECURE_PORT = 2281

SESSION_TIMEOUT = 30.0
"""Requested session timeout in seconds; the server grants from 2 to 20 of its ticks."""

ACLS = ("open", "creator", "creator+read")
"""Who may use our nodes: everybody; only our credentials; only our credentials, but everybody may read."""

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
    """How to reach an ensemble. Its repr has no secret.

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
        return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)

    def __reduce__(self) -> str:
        raise TypeError("settings cannot be pickled: they may have a password")


def from_url(url: StoreURL) -> Settings:
    """Read ``zookeeper://user:password@h1,h2/chroot?session_timeout=…`` and ``zookeepers://`` (TLS).

    Raises:
        ValueError: an option is unknown or has a value that it cannot have.
    """
    secure = url.scheme == "zookeepers"
    url.refuse_options(OPTIONS, secure="" if secure else "zookeepers")
    if not url.hosts and url.path and not url.path.startswith("/"):
        raise ValueError(f"a {url.scheme} URL has two slashes before its hosts; write {url.scheme}://localhost:{PORT}")
    usual = SECURE_PORT if secure else PORT
    hosts = tuple((host, port or usual) for host, port in url.hosts) or (("localhost", usual),)
    digest, sasl = _credentials(url)
    acl = url.options.get("acl", "creator" if digest or sasl else "open")
    if acl not in ACLS:
        raise ValueError(f"option 'acl' in the {url.scheme} URL is one of {', '.join(ACLS)}")
    if acl != "open" and not (digest or sasl or secure):
        raise ValueError(f"acl={acl} needs credentials: write {url.scheme}://user:password@host")
    return Settings(hosts, _timeout(url), acl, digest, sasl, _tls(url) if secure else Veiled())


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
    if url.username is None and url.password is None:
        if "auth" in url.options:
            raise ValueError(f"auth={how} needs credentials: write {url.scheme}://user:password@host")
        return None, Veiled()
    if not url.username or url.password is None:
        raise ValueError(f"the {url.scheme} URL has a user without a password or the other way round; write both")
    if how == "sasl":
        return None, Veiled(mechanism="DIGEST-MD5", username=url.username, password=url.password.reveal())
    if ":" in url.username:
        raise ValueError(f"the user in the {url.scheme} URL has a colon; digest takes what follows for the password")
    return Secret(f"{url.username}:{url.password.reveal()}"), Veiled()


def _tls(url: StoreURL) -> Veiled:
    check = url.options.get("ssl_check_hostname", "true")
    if check not in ("true", "false"):
        raise ValueError(f"option 'ssl_check_hostname' in the {url.scheme} URL is true or false")
    if ("ssl_certfile" in url.options) is not ("ssl_keyfile" in url.options):
        raise ValueError(f"options 'ssl_certfile' and 'ssl_keyfile' in the {url.scheme} URL go together")
    options = Veiled(use_ssl=True, verify_certs=True, check_hostname=check == "true")
    options.update({theirs: url.options[ours] for ours, theirs in TLS_OPTIONS.items() if ours in url.options})
    return options
