"""The Lua scripts of layouts: the common part, the part of one layout, and one step make a script of constant text."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files

from leasehold.stores.redis.scripts import Script


@dataclass(frozen=True, slots=True)
class Scripts:
    """The scripts of one layout."""

    claim: Script
    leave: Script
    renew: Script
    stay: Script
    look: Script

    @classmethod
    def of(cls, layout: str) -> Scripts:
        """Load the scripts of the layout with this name."""
        return cls(*(_load(layout, step) for step in ("claim", "leave", "renew", "stay", "look")))


def _load(layout: str, step: str) -> Script:
    folder = files(__name__)
    parts = [folder.joinpath(f"{part}.lua").read_text(encoding="utf-8") for part in ("common", layout, step)]
    text = "\n".join(parts).encode()
    return Script(f"{layout}_{step}", text, hashlib.sha1(text, usedforsecurity=False).hexdigest().encode())
