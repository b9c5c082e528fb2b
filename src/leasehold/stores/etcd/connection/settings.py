"""How to reach an etcd cluster: members, TLS and user."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

from leasehold._url import Secret, StoreURL, is_local, switch
from leasehold.stores.etcd.http.base import Endpoint

PORT = 2379

ROOT = "leasehold"
"""First part of all keys, unless the URL has a path."""

OPTIONS = ("locks", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname")


@dataclass(frozen=True)
class Settings:
    """How to reach the members. The repr has no secret, and a `Secret` cannot be pickled.

    Attributes:
        where: the members, for messages.
        root: first part of all keys.
        locks: prefix of the keys of locks, to share them with other programs; None for ``root/namespace/lock/``.
        username: the user; None for none.
        certified: whether a client certificate is used.
    """

    where: str
    endpoints: tuple[Endpoint, ...] = field(repr=False)
    root: str = ROOT
    locks: str | None = None
    username: str | None = field(default=None, repr=False)
    password: Secret = field(default_factory=lambda: Secret(""), repr=False)
    certified: bool = False

    @property
    def encrypted(self) -> bool:
        """Whether the connections use TLS."""
        return self.endpoints[0].tls is not None

    @property
    def local(self) -> bool:
        """Whether no connection leaves this host."""
        return all(is_local(endpoint.host) for endpoint in self.endpoints)


def from_url(url: StoreURL) -> Settings:
    """Read ``etcd://user:password@host1:2379,host2/root?options`` or ``etcds://``.

    Raises:
        ValueError: an option has a value that it cannot have.
    """
    url.refuse_options(OPTIONS, secure="etcds" if url.scheme == "etcd" else "")
    if not url.hosts and url.path:
        raise ValueError(f"an {url.scheme} URL has two slashes before its hosts; write {url.scheme}://localhost:{PORT}")
    if url.password is not None and not url.username:
        raise ValueError(f"the {url.scheme} URL has a password and no user; etcd wants both: user:password@host")
    if url.username and url.password is None:
        raise ValueError(f"the {url.scheme} URL has a user and no password; etcd wants both: user:password@host")
    root = url.path.strip("/") or ROOT
    locks = url.options.get("locks")
    if locks is not None and not locks:
        raise ValueError(f"option 'locks' in the {url.scheme} URL is empty; leave it out, or name a prefix as /jobs/")
    if locks and not locks.endswith("/"):  # the keys of other programs for a lock are below PREFIX/NAME
        raise ValueError(f"option 'locks' in the {url.scheme} URL has no slash at its end; write locks={locks}/")
    context = _context(url)
    endpoints = tuple(
        Endpoint(_ascii(host, url), port or PORT, context) for host, port in url.hosts or (("localhost", None),)
    )
    return Settings(
        ",".join(map(str, endpoints)),
        endpoints,
        root,
        locks,
        url.username,
        url.password or Secret(""),
        certified="ssl_certfile" in url.options,
    )


def _ascii(host: str, url: StoreURL) -> str:
    """Return the ASCII form of a host name, for HTTP and certificates."""
    try:
        return host if host.isascii() else host.encode("idna").decode("ascii")
    except UnicodeError:
        raise ValueError(f"the {url.scheme} URL has a host name that cannot be one") from None


def _context(url: StoreURL) -> ssl.SSLContext | None:
    options = {key: value for key, value in url.options.items() if key.startswith("ssl_")}
    if url.scheme != "etcds":
        return None
    checked = switch(url, "ssl_check_hostname", "true")
    if "ssl_keyfile" in options and "ssl_certfile" not in options:
        raise ValueError(f"option 'ssl_keyfile' in the {url.scheme} URL is the key of 'ssl_certfile', which is missing")
    try:
        context = ssl.create_default_context(cafile=options.get("ssl_ca_certs"))
        if "ssl_certfile" in options:
            context.load_cert_chain(options["ssl_certfile"], options.get("ssl_keyfile"))
    except (OSError, ssl.SSLError, ValueError) as error:
        raise ValueError(
            f"a certificate or key named in the {url.scheme} URL cannot be read: {error}; check the ssl_ options"
        ) from None
    context.check_hostname = checked
    return context
