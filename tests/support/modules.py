"""The modules of the library that can be imported without more ado."""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Iterator

import leasehold
from leasehold.errors import MissingDriver

NOT_ALONE = {
    "leasehold.__main__",  # runs the command line
    "leasehold.integrations.django.models",  # these need the settings of a project
    "leasehold.integrations.django.admin",
}

WITH_FRAMEWORK = ("leasehold.integrations.", "leasehold.observability.", "leasehold.ui", "leasehold.cli.top")
"""Modules that need a framework. The environment of the default tier has none."""


def importable() -> Iterator[str]:
    """Return their names. Those whose framework is not installed are left out, except in CI, where each must be."""
    for info in pkgutil.walk_packages(leasehold.__path__, "leasehold."):
        if info.name not in NOT_ALONE and not _lacks_framework(info.name):
            yield info.name


def _lacks_framework(name: str) -> bool:
    if not name.startswith(WITH_FRAMEWORK) or "CI" in os.environ:
        return False
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        return not (error.name or "").startswith("leasehold")
    except MissingDriver:
        return True
    return False
