"""What a namespace puts before a name in the format of another library."""

from __future__ import annotations

import re

DEFAULT = "default"
"""The namespace that adds nothing."""


def before(namespace: str) -> str:
    """Return what precedes a name: the namespace and a ``:``, which is encoded in it; nothing for the default."""
    return "" if namespace == DEFAULT else re.sub("[:%]", _encoded, namespace) + ":"


def _encoded(found: re.Match[str]) -> str:
    return f"%{ord(found[0]):02X}"
