"""System checks: the settings always, and ``leasehold doctor`` for each store with ``manage.py check --deploy``.

Both have the tag ``leasehold``. No check without ``--deploy`` sends anything.
"""
# pyright: basic
# (Django has no types)

from __future__ import annotations

from typing import Any

from django.core import checks
from django.core.exceptions import ImproperlyConfigured

from leasehold._model import Severity
from leasehold.errors import LeaseholdError
from leasehold.integrations.django import conf
from leasehold.integrations.django.clients import locks

TAG = "leasehold"

CLASSES = {Severity.ERROR: checks.Error, Severity.WARNING: checks.Warning}
"""What is reported; notes and what is in order are what ``manage.py leasehold doctor`` shows."""


@checks.register(TAG)  # type: ignore[untyped-decorator]
def check_settings(**_: Any) -> list[checks.CheckMessage]:
    """Check ``LEASEHOLD`` and ``LEASEHOLD_MIGRATE``; without them the app only guards ``migrate``."""
    found = []
    try:
        aliases = conf.aliases()
        conf.migrate_settings()
    except ImproperlyConfigured as error:
        return [checks.Error(str(error), id="leasehold.E001")]
    for alias in aliases:
        try:
            conf.store_settings(alias)
        except ImproperlyConfigured as error:
            found.append(checks.Error(str(error), id="leasehold.E001"))
    return found


@checks.register(TAG, deploy=True)  # type: ignore[untyped-decorator]
def check_stores(**_: Any) -> list[checks.CheckMessage]:
    """Let each store diagnose itself."""
    if check_settings():
        return []  # reported already
    return [message for alias in conf.aliases() for message in _diagnosed(alias)]


def _diagnosed(alias: str) -> list[checks.CheckMessage]:
    from leasehold.cli.output import printable, without_secrets

    try:
        findings = locks[alias].diagnose()
    except LeaseholdError as error:
        said = printable(without_secrets(str(error)))
        return [checks.Error(f"LEASEHOLD[{alias!r}]: {said}", id="leasehold.E002")]
    return [
        CLASSES[finding.severity](
            f"LEASEHOLD[{alias!r}], {finding.subject}: {printable(without_secrets(finding.found))}. {finding.meaning}",
            hint=finding.remedy or None,
            id="leasehold.E003" if finding.severity is Severity.ERROR else "leasehold.W001",
        )
        for finding in findings
        if finding.severity in CLASSES
    ]
