"""Fenced updates for the ORM: no write of an older holder is applied after one of a newer holder.

The model has a `FenceField`, which keeps the highest token that wrote to the row; see `leasehold.guards`.
The transaction must end inside the block of the lock: a later commit lets the next holder read the old value.

Example:
    <!-- not run: it needs a project -->
    ```python
    class Stock(models.Model):
        left_over = models.IntegerField()
        fence = FenceField()
        objects = FencedManager()

    with locks.lock(f"stock:{pk}") as hold:
        Stock.objects.filter(pk=pk).fenced_update(token=hold.token, left_over=9)
    ```
"""
# pyright: basic
# (Django has no types)

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import models, router, transaction

from leasehold.guards import Stale, check_token

__all__ = ["FenceField", "FencedManager", "FencedQuerySet", "Stale"]


class FenceField(models.BigIntegerField):  # type: ignore[misc]
    """The highest token that wrote to the row; 0 at first. Forms do not show it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        options.setdefault("default", 0)
        options.setdefault("editable", False)
        super().__init__(*args, **options)

    def deconstruct(self) -> Any:
        """Describe the field for migrations as what it is in the database, so that they do not import leasehold."""
        name, _, args, options = super().deconstruct()
        return name, "django.db.models.BigIntegerField", args, options


class FencedQuerySet(models.QuerySet):  # type: ignore[misc]
    """A queryset with `fenced_update`."""

    model: Any

    def fenced_update(self, *, token: int, **changes: Any) -> int:
        """Change the rows that no newer holder has written to, and mark them with the token; all of them or none.

        Args:
            token: of your hold.
            changes: the new values, as in ``update``.

        Returns:
            How many rows were changed: 0 if the filter finds none.

        Raises:
            Stale: a row that the filter finds was written with a higher token; no row was changed.
            ValueError: a change or the filter is of another table, or sets the fence.
        """
        check_token(token)
        fence = self._fence()
        self._refuse_other_tables(fence, changes)
        database = self._db or router.db_for_write(self.model, **self._hints)
        rows = self.using(database)
        atomic: Any = transaction.atomic
        with atomic(using=database):
            changed = rows.filter(**{f"{fence.name}__lte": token}).update(**changes, **{fence.name: token})
            newer = rows.filter(**{f"{fence.name}__gt": token}).order_by()
            if transaction.get_connection(database).vendor == "mysql":
                newer = newer.select_for_update()  # it reads the current rows, and not the transaction's snapshot
            highest = max(newer.values_list(fence.name, flat=True), default=0)
            if highest:
                raise Stale(
                    f"{self.model._meta.label} was written by a holder with token {highest}, and this one has {token}: "
                    "its lock was lost",
                    token=token,
                    fence=highest,
                )
        return int(changed)

    fenced_update.alters_data = True  # type: ignore[attr-defined]  # templates do not call it

    async def afenced_update(self, *, token: int, **changes: Any) -> int:
        """Do what `fenced_update` does, from async code."""
        return int(await sync_to_async(self.fenced_update)(token=token, **changes))

    afenced_update.alters_data = True  # type: ignore[attr-defined]

    def _fence(self) -> Any:
        found = [field for field in self.model._meta.concrete_fields if isinstance(field, FenceField)]
        if len(found) != 1:
            raise ImproperlyConfigured(f"{self.model._meta.label} needs one FenceField, and has {len(found)}")
        return found[0]

    def _refuse_other_tables(self, fence: Any, changes: dict[str, Any]) -> None:
        """Refuse what would be several statements: then the fence would not guard all of them."""
        if fence.model._meta.concrete_model is not self.model._meta.concrete_model:
            raise ValueError(f"the fence is a field of {fence.model._meta.label}; update the rows by that model")
        names = {fence.name, fence.attname}
        for name in changes:
            if name in names:
                raise ValueError(f"{name!r} is set to the token; leave it out of the changes")
            if self.model._meta.get_field(name).model._meta.concrete_model is not fence.model._meta.concrete_model:
                raise ValueError(f"{name!r} is a field of another table than the fence; update it by its own model")
        query: Any = self.query.chain()
        query.get_initial_alias()
        if sum(count > 0 for count in query.alias_refcount.values()) > 1 or query.combinator:
            raise ValueError(
                "the filter uses another table: select the primary keys first, and use filter(pk__in=list(…))"
            )


FencedManager = models.Manager.from_queryset(FencedQuerySet, class_name="FencedManager")
"""A manager whose querysets have `fenced_update`."""
