"""What stores have alike whose driver makes the connections: how URLs are read, and what the driver's errors mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from leasehold._url import StoreURL, Veiled
from leasehold.errors import LeaseholdError, StoreRefused, StoreUnavailable, Unsupported


class Answer(Exception):
    """An error that is an answer to the request, which does not fit what is stored: nothing was changed."""


Error = Callable[[str], LeaseholdError]
"""Makes an error from a message."""

NOT_DONE: Error = StoreUnavailable  # it may be sent again
UNKNOWN: Error = partial(StoreUnavailable, unknown=True)  # perhaps done: repeat it only where that is harmless
LASTING: Error = StoreRefused  # not done; a retry fails until a setting is changed
UNSUPPORTED: Error = Unsupported  # not possible with this server


def members(url: StoreURL, port: int) -> tuple[tuple[str, int], ...]:
    """Return host and port of each member; ``port`` where none is given, this host where there is no member.

    Raises:
        ValueError: the slashes before the hosts are missing.
    """
    if not url.hosts and url.path and not url.path.startswith("/"):
        raise ValueError(f"a {url.scheme} URL has two slashes before its hosts; write {url.scheme}://localhost:{port}")
    return tuple((host, given or port) for host, given in url.hosts) or (("localhost", port),)


def refuse_half_credentials(url: StoreURL) -> None:
    """Raise ValueError for a user without a password, or a password without a user."""
    if (url.username is None) is not (url.password is None):
        raise ValueError(f"the {url.scheme} URL has a user without a password or the other way round; write both")


def tls(url: StoreURL, names: Mapping[str, str], **fixed: Any) -> Veiled:
    """Return the driver's arguments for TLS: ``fixed``, and options of the URL by the driver's ``names``.

    Raises:
        ValueError: there is a certificate without a key, or the other way round.
    """
    if ("ssl_certfile" in url.options) is not ("ssl_keyfile" in url.options):
        raise ValueError(f"options 'ssl_certfile' and 'ssl_keyfile' in the {url.scheme} URL go together")
    return Veiled(fixed | {theirs: url.options[ours] for ours, theirs in names.items() if ours in url.options})
