"""The driver's modules. They are imported without the warning that the driver's ``asyncore`` is deprecated."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    hazelcast: Any = importlib.import_module("hazelcast")


def module(name: str) -> Any:
    """Return a module of the driver."""
    return importlib.import_module(f"hazelcast.{name}")
