"""Store URLs: one parser for all, with clear errors, which never print a password.

Passwords leak through an error: its text, the objects in it, the local variables that crash reporters show for each
frame. So a function that has the text of a URL raises no error: `_read` returns a description, and the error is raised
where only the `Secret` is left.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from typing import Any
from urllib.parse import parse_qsl, unquote

OF_SEVERAL = ("redlock", "redlocks")
"""Schemes whose servers may each have a URL of their own."""


WITHOUT_HOST = ("memory", "sqlite")
"""Schemes whose path may have an ``@``."""


class Secret:
    """A text that is never shown: repr, str and pickle omit it."""

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


class Veiled(dict[str, Any]):
    """A dictionary whose repr has the keys and none of the values, and which cannot be pickled."""

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{key}: ***" for key in self) + "}"

    def __reduce__(self) -> str:
        raise TypeError("options with secrets cannot be pickled")


@dataclass(frozen=True, slots=True)
class StoreURL:
    """A URL in parts. Its repr and str have no password.

    Nor do they have a user without a password: people who write ``redis://secret@host`` mean a password.
    """

    scheme: str  # in lower case
    username: str | None = None
    password: Secret | None = None
    hosts: tuple[tuple[str, int | None], ...] = ()  # host and port of each server; port None where none was given
    path: str = ""  # decoded, without the slash that follows the hosts
    options: Mapping[str, str] = field(default_factory=Veiled)  # what follows the question mark
    raw: Secret = field(default_factory=lambda: Secret(""))
    members: tuple[Secret, ...] = ()  # the URLs in ``redlock:URL|URL|URL``; then there are no hosts and no path

    def __str__(self) -> str:
        if self.members:
            return f"{self.scheme}:{'|'.join(str(parse(each)) for each in self.members)}"
        user = "***@" if self.username else ""
        if self.password is not None:
            user = f"{self.username or ''}:***@"
        hosts = ",".join(address(host, port) for host, port in self.hosts)
        slashes = "//" if hosts or user else ""
        _, at, rest = self.path.rpartition("@")
        path = self.path if not at else f"***@{rest}"  # a URL whose slashes were forgotten is all path
        path = f"/{path}" if slashes and path else path
        return f"{self.scheme}:{slashes}{user}{hosts}{path}"

    def __repr__(self) -> str:
        return f"<StoreURL {self}>"

    def refuse_options(self, known: tuple[str, ...] = (), *, secure: str = "") -> None:
        """Raise ValueError for an option that is not in ``known``.

        Where this scheme has no TLS, ``secure`` is the one that has: an ``ssl_`` option is refused with its name.
        """
        if secure and any(key.startswith("ssl_") for key in self.options):
            raise ValueError(f"the {self.scheme} URL has no TLS; write {secure}:// for the ssl_ options to apply")
        offered = sorted(key for key in known if not (secure and key.startswith("ssl_")))
        for key in self.options:
            if key not in offered:
                from difflib import get_close_matches  # only for the message

                meant = "".join(f"did you mean {close!r}? " for close in get_close_matches(key, offered, 1))
                listed = f"known are: {', '.join(offered)}" if offered else "this scheme has none"
                raise ValueError(f"unknown option {key!r} in the {self.scheme} URL; {meant}{listed}")


def parse(text: str | Secret) -> StoreURL:
    """Read a URL.

    Raises:
        ValueError: it is malformed. The message has no more of it than its scheme and the names of its options.
    """
    hidden = text if isinstance(text, Secret) else Secret(text)
    del text
    if not isinstance(hidden.reveal(), str):
        raise TypeError(f"the store URL must be a str, not {type(hidden.reveal()).__name__}")
    found = _read(hidden)
    if isinstance(found, str):
        raise ValueError(found)
    return found


class _Malformed(Exception):
    """A malformed part of a URL; the exception never leaves this file."""


def _read(hidden: Secret) -> StoreURL | str:
    """Return the URL, or a description of its error."""
    text = hidden.reveal()
    scheme, colon, rest = text.partition(":")
    if not colon or not scheme[:1].isalpha() or not all(c.isascii() and (c.isalnum() or c in "+.-") for c in scheme):
        return "the store URL has no scheme; write for example redis://localhost:6379 or sqlite:/path/locks.db"
    scheme = scheme.lower()
    if any(c.isspace() or unicodedata.category(c) in ("Cc", "Cs") for c in text):
        return f"the {scheme} URL has white space or control characters in it; percent-encode them"
    try:
        if scheme in OF_SEVERAL and not rest.startswith("//"):
            return _several(scheme, rest, hidden)
        return _assemble(scheme, rest, hidden)
    except _Malformed as error:
        return f"the {scheme} URL {error}"


def _assemble(scheme: str, rest: str, hidden: Secret) -> StoreURL:
    """Parse what follows the scheme. Python's own parser takes one host only, and refuses brackets elsewhere."""
    if "#" in hidden.reveal():
        raise _Malformed("has a '#' in it; write it as %23")
    place, _, query = rest.partition("?")
    netloc, path = "", place
    if place.startswith("//"):
        netloc, slash, path = place[2:].partition("/")
        path = slash + path
    if netloc and "@" in path + query:
        raise _Malformed("has an '@' after its host; in a password write / as %2F, ? as %3F and @ as %40")
    if not netloc and "@" in path and not _may_be_path(scheme, path):  # a path is shown
        where = "/path; : in a path is %3A" if scheme == "unix" else "host; @ in a path is %40"
        raise _Malformed(f"has two slashes before its host; write {scheme}://user:password@{where}")
    userinfo, _, hostlist = netloc.rpartition("@")
    if "[" in userinfo or "]" in userinfo:
        raise _Malformed("has a bracket in its user or password; write [ as %5B and ] as %5D")
    username, secret, password = userinfo.partition(":")
    return StoreURL(
        scheme,
        _decoded(username) or None,
        Secret(_decoded(password)) if secret else None,
        tuple(_host(host) for host in hostlist.split(",")) if hostlist else (),
        _plain(path.removeprefix("/") if netloc else path, "path"),
        _options(query),
        hidden,
    )


def _may_be_path(scheme: str, path: str) -> bool:
    """Return whether a path with an ``@`` is none that begins with a user and a password."""
    if scheme == "unix":
        return path.startswith("/") and ":" not in path.partition("@")[0]
    return scheme in WITHOUT_HOST


def _several(scheme: str, rest: str, hidden: Secret) -> StoreURL:
    """Parse ``URL|URL|URL|?options``: each URL has its own options; the last part may have those for all."""
    *members, last = rest.split("|")
    if not last.startswith("?"):
        members, last = [*members, last], ""
    for number, member in enumerate(members, start=1):
        wrong = _read(Secret(member))
        if isinstance(wrong, str):
            raise _Malformed(f"is wrong at member {number} of {len(members)}: {wrong}")
    return StoreURL(scheme, options=_options(last[1:]), raw=hidden, members=tuple(map(Secret, members)))


def _options(query: str) -> Veiled:
    if not query:
        return Veiled()
    try:
        literal = query.replace("+", "%2B")  # in a form it would be a space, but a URL is no form
        pairs = parse_qsl(literal, keep_blank_values=True, strict_parsing=True, errors="strict")
    except ValueError:
        raise _Malformed("is malformed; options are written ?name=value&name=value") from None
    options = Veiled(pairs)
    for key in options:
        if not (key.isascii() and key.replace("_", "").isalnum() and len(key) <= 40):
            raise _Malformed("has an option without a plain name; options are written ?name=value&name=value")
    if len(options) < len(pairs):
        raise _Malformed("has an option twice; leave one out")
    return options


def _host(text: str) -> tuple[str, int | None]:
    host, colon, port = (text, "", "") if text.endswith("]") else text.rpartition(":")
    if not colon:
        host, port = text, ""
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if not host:
        raise _Malformed("names no host; write for example localhost:6379")
    if "[" in host or "]" in host or (":" in host and not bracketed):
        raise _Malformed("has an IPv6 address or a port too many; write an IPv6 address in brackets, [::1]:6379")
    if colon and not (port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65536):
        raise _Malformed("has a port that is no number from 1 to 65535")
    name = _plain(host, "host")
    if bracketed:
        try:
            IPv6Address(name)
        except ValueError:
            raise _Malformed(
                "has something else than an IPv6 address between brackets; write for example [::1]:6379"
            ) from None
    return name, int(port) if port else None


def _decoded(text: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise _Malformed("has percent-encoded bytes that are not UTF-8") from None


def _plain(text: str, what: str) -> str:
    decoded = _decoded(text)
    if any(unicodedata.category(c) == "Cc" for c in decoded):
        raise _Malformed(f"has control characters in its {what}")
    return decoded


def address(host: str, port: int | None) -> str:
    """Return host and port as in a URL, for people; the host alone if ``port`` is None."""
    name = f"[{host}]" if ":" in host else host
    return name if port is None else f"{name}:{port}"


def is_local(host: str) -> bool:
    """Return whether a connection to ``host`` does not leave this one."""
    return host in ("localhost", "::1") or host.startswith("127.")


def switch(url: StoreURL, option: str, default: str = "false") -> bool:
    """Return whether an option is on; raise ValueError if it is neither true nor false."""
    text = url.options.get(option, default)
    if text not in ("true", "false"):
        raise ValueError(f"option {option!r} in the {url.scheme} URL is true or false")
    return text == "true"
