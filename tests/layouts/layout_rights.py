"""The rights that the page on other libraries lists, for a server's user who may lock the names of one namespace."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from layout_keys import BEFORE, SIGNAL, url_of

PAGE = Path(__file__).parents[2] / "docs" / "interop.md"


def commands() -> list[str]:
    """Return the commands that the page lists."""
    text = re.sub(r"\s+", " ", PAGE.read_text(encoding="utf-8"))
    (listed,) = re.findall(r"and the commands (.+?)\. ", text)
    return re.findall(r"`([A-Z]+)`", listed)


def rules(layout: str, namespace: str) -> list[str]:
    channels = ["&leasehold:*", f"&redisson_*:{{{namespace}:*", f"&locks-channel:locks:{namespace}:*"]
    redisson = f"~redisson_lock_*:{{{namespace}:*", f"~{{{namespace}:*"
    ours = [f"~{BEFORE.get(layout, '')}{namespace}:*", "~leasehold:layout:*", f"~{SIGNAL}{namespace}:*", *redisson]
    return [*ours, *channels, *(f"+{command.lower()}" for command in commands())]


@pytest.fixture
def user(redis_server, namespace):
    name = f"user-{namespace}"
    yield name
    redis_server.command("ACL", "DELUSER", name)


def url_for(server, user: str, layout: str) -> str:
    return url_of(f"redis://{user}:secret@127.0.0.1:{server.port}", layout)
