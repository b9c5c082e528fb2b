"""The Lua scripts of layouts: the common part, the part of one layout, and one step make a script of constant text."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from leasehold.stores.redis.scripts import Script

STEPS = ("claim", "release", "renew", "renew_waiters", "inspect", "rights")

COMMAND = re.compile(rb"redis\.p?call\('([A-Z]+)'")
"""A command in a script."""


@dataclass(frozen=True, slots=True)
class Scripts:
    """The scripts of one layout.

    Attributes:
        rights: tries the commands that the others use.
        commands: those commands, in order of their names.
    """

    claim: Script
    release: Script
    renew: Script
    renew_waiters: Script
    inspect: Script
    rights: Script
    commands: Sequence[bytes]

    @classmethod
    @cache
    def of(cls, *layout: str) -> Scripts:
        """Load the scripts of the layout with this name; a part that changes some of it may follow."""
        claim, release, renew, renew_waiters, inspect, rights = (_load(layout, step) for step in STEPS)
        texts = (script.text for script in (claim, release, renew, renew_waiters, inspect))
        commands = sorted({found[1] for text in texts for found in COMMAND.finditer(text)})
        return cls(claim, release, renew, renew_waiters, inspect, rights, commands)


def _load(layout: Sequence[str], step: str) -> Script:
    folder = files(__name__)
    parts = [folder.joinpath(f"{part}.lua").read_text(encoding="utf-8") for part in ("common", *layout, step)]
    text = "\n".join(parts).encode()
    return Script(f"{'_'.join(layout)}_{step}", text, hashlib.sha1(text, usedforsecurity=False).hexdigest().encode())
