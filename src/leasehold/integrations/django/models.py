"""The model of the admin's page. It has no table: the locks are in the store."""
# pyright: basic
# (Django has no types)

from __future__ import annotations

from typing import ClassVar

from django.db import models


class HeldLock(models.Model):  # type: ignore[misc]
    """A name that is held; the permission to see them all is ``leasehold.view_heldlock``."""

    name = models.TextField(primary_key=True)

    class Meta:
        """No table, and only the permission to view."""

        managed = False
        default_permissions: ClassVar = ("view",)
        verbose_name = "held lock"
        verbose_name_plural = "held locks"

    def __str__(self) -> str:
        return str(self.name)
