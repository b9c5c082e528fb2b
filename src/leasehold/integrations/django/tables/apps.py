"""The app ``leasehold_tables``; a router can keep it off a database by this label."""
# pyright: basic
# (Django has no types)

from __future__ import annotations

from django.apps import AppConfig


class TablesConfig(AppConfig):  # type: ignore[misc]
    """Has migrations, and nothing else."""

    name = "leasehold.integrations.django.tables"
    label = "leasehold_tables"
    verbose_name = "Tables of locks"
