"""The model of the admin's page. It has no table: the locks are in the store."""
# pyright: basic
# (Django has no types)

from __future__ import annotations

from typing import ClassVar

from django.db import models


class _NoRows(models.Manager):  # type: ignore[misc]
    """For what reads all models, as ``dumpdata``: it finds nothing, and asks no database."""

    def get_queryset(self) -> models.QuerySet:
        return super().get_queryset().none()


class HeldLock(models.Model):  # type: ignore[misc]
    """A name that is held; the permission to see them all is ``leasehold.view_heldlock``."""

    name = models.TextField(primary_key=True)

    objects = _NoRows()

    class Meta:
        """No table, and only the permission to view."""

        managed = False
        base_manager_name = "objects"
        default_permissions: ClassVar = ("view",)
        verbose_name = "held lock"
        verbose_name_plural = "held locks"

    def __str__(self) -> str:
        return str(self.name)
