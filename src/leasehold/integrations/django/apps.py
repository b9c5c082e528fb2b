"""The app ``leasehold``: `locks`, commands, checks, and the page of the admin."""
# pyright: basic
# (Django has no types)

from __future__ import annotations

from django.apps import AppConfig


class LeaseholdConfig(AppConfig):  # type: ignore[misc]
    """Registers the system checks."""

    name = "leasehold.integrations.django"
    label = "leasehold"
    verbose_name = "Locks"

    def ready(self) -> None:
        """Import the checks, which registers them."""
        from leasehold.integrations.django import checks  # noqa: F401  # pyright: ignore[reportUnusedImport]
