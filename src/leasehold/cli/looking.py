"""What the commands that only look have in common: a client for the length of a command."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager

from leasehold import Client


@contextmanager
def connected(url: str | None, namespace: str) -> Generator[Client]:
    """Give a client; library messages stay off the terminal, since a command says itself what happened."""
    hush()
    with Client.from_url(url, namespace=namespace) as client:
        yield client


def hush() -> None:
    """Keep the library's log off standard error."""
    log = logging.getLogger("leasehold")
    log.addHandler(logging.NullHandler())
    log.propagate = False
