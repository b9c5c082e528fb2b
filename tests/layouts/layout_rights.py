"""The rights that the page on other libraries lists, for a server's user who may lock the names of one namespace."""

from __future__ import annotations

import re
from pathlib import Path

from layout_keys import BEFORE, SIGNAL

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
