"""Store URLs: one parser for all, with clear errors, and no way for a password to be printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit


class Secret:
    """A text that is never shown: its repr, str and pickle do not have it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text, to hand it to a driver."""
        return self._text

    def __repr__(self) -> str:
        return "***"

    def __reduce__(self) -> str:
        raise TypeError("a secret cannot be pickled")


@dataclass(frozen=True, slots=True)
class StoreURL:
    """A URL in parts. Its repr and str have no password.

    Attributes:
        scheme: in lower case.
        hosts: host and port of each server; port None where none was given.
        path: decoded, without the slash that follows the hosts.
        options: what follows the question mark; keys that hold secrets are kept apart in ``secrets``.

    """

    scheme: str
    username: str | None = None
    password: Secret | None = None
    hosts: tuple[tuple[str, int | None], ...] = ()
    path: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    raw: Secret = field(default_factory=lambda: Secret(""))

    def __str__(self) -> str:
        user = (
            f"{self.username or ''}:***@"
            if self.password is not None
            else (f"{self.username}@" if self.username else "")
        )
        hosts = ",".join(_host(host, port) for host, port in self.hosts)
        slashes = "//" if hosts or user else ""
        path = f"/{self.path}" if slashes and self.path else self.path
        return f"{self.scheme}:{slashes}{user}{hosts}{path}"

    def __repr__(self) -> str:
        return f"<StoreURL {self}>"

    def refuse_options(self, known: tuple[str, ...] = ()) -> None:
        """Raise ValueError for an option that is not in ``known``."""
        for key in self.options:
            if key not in known:
                offered = f"known are: {', '.join(sorted(known))}" if known else "this scheme has none"
                raise ValueError(f"unknown option {key!r} in the {self.scheme} URL; {offered}")


def parse(text: str) -> StoreURL:
    """Read a URL.

    Raises:
        ValueError: it is malformed. The message has no more of it than its scheme.

    """
    if not isinstance(text, str):
        raise TypeError(f"the store URL must be a str, not {type(text).__name__}")
    scheme, colon, rest = text.partition(":")
    if not colon or not scheme or not all(c.isascii() and (c.isalnum() or c in "+.-") for c in scheme):
        raise ValueError(
            "the store URL has no scheme; write for example redis://localhost:6379 or sqlite:/path/locks.db"
        )
    scheme = scheme.lower()
    if any(c.isspace() or ord(c) < 32 for c in text):
        raise ValueError(f"the {scheme} URL has white space or control characters in it; percent-encode them")
    try:
        parts = urlsplit("x:" + rest)
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        raise ValueError(f"the {scheme} URL is malformed; options are written ?name=value&name=value") from None
    if parts.fragment:
        raise ValueError(f"the {scheme} URL has a '#' in it; write it as %23")
    userinfo, _, hostlist = parts.netloc.rpartition("@")
    username, secret, password = userinfo.partition(":")
    return StoreURL(
        scheme,
        unquote(username) or None,
        Secret(unquote(password)) if secret else None,
        tuple(_parse_host(scheme, host) for host in hostlist.split(",")) if hostlist else (),
        unquote(parts.path.removeprefix("/") if parts.netloc else parts.path),
        options,
        Secret(text),
    )


def _parse_host(scheme: str, text: str) -> tuple[str, int | None]:
    host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        host, port = text, ""
    host = host.removeprefix("[").removesuffix("]")
    if not host:
        raise ValueError(f"the {scheme} URL names no host before a port")
    if colon and not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError(f"the {scheme} URL has a port that is no number from 1 to 65535")
    return unquote(host), int(port) if port else None


def _host(host: str, port: int | None) -> str:
    shown = f"[{host}]" if ":" in host else host
    return shown if port is None else f"{shown}:{port}"
