"""A page of the admin, to look at: which locks are held, by whom, and who waits."""
# pyright: basic
# (Django has no types)

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import path

from leasehold.errors import LeaseholdError
from leasehold.integrations.django.clients import locks
from leasehold.integrations.django.models import HeldLock

MOST = 1000
"""Names of one store that the page shows."""


@admin.register(HeldLock)
class HeldLockAdmin(admin.ModelAdmin):  # type: ignore[misc]
    """The list of held locks. There is nothing to add, to change or to delete."""

    def get_urls(self) -> list[Any]:
        """Return the list alone: there is no page for one lock, and none to change it."""
        info = self.opts.app_label, self.opts.model_name
        return [path("", self.admin_site.admin_view(self.changelist_view), name="{}_{}_changelist".format(*info))]

    def has_add_permission(self, request: HttpRequest, *_: Any) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, *_: Any) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, *_: Any) -> bool:
        return False

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Show the locks of all stores whose names begin with what was asked for."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        prefix = str(request.GET.get("q", ""))
        context = {
            **self.admin_site.each_context(request),
            "title": "Held locks",
            "opts": self.opts,
            "prefix": prefix,
            "stores": [_of_store(alias, prefix) for alias in _aliases()],
        }
        return TemplateResponse(request, "admin/leasehold/heldlock/held.html", context)


def _aliases() -> list[str]:
    try:
        return list(locks)
    except ImproperlyConfigured:  # the system checks say it
        return []


def _of_store(alias: str, prefix: str) -> dict[str, Any]:
    try:
        found = locks[alias].holds(prefix)
    except (LeaseholdError, ImproperlyConfigured) as error:
        return {"alias": alias, "error": str(error)}
    return {"alias": alias, "infos": found[:MOST], "left_out": max(len(found) - MOST, 0)}
