"""django-pglocks: an advisory lock of PostgreSQL on the thread's connection of Django."""

from __future__ import annotations

from importlib import import_module
from typing import Any
from urllib.parse import unquote, urlsplit

from leasehold_lab.bench.subjects.base import Scope, Turn

advisory_lock: Any = import_module("django_pglocks").advisory_lock
django_settings: Any = import_module("django.conf").settings
django_connections: Any = import_module("django.db").connections

OTHER = "other"
"""A second connection of each thread."""


class Blocking:
    """See `leasehold_lab.bench.subjects.base.Session`."""

    def __init__(self, scope: Scope) -> None:
        parts, self._scope = urlsplit(scope.url), scope
        database = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": parts.path.strip("/"),
            "USER": unquote(parts.username or ""),
            "PASSWORD": unquote(parts.password or ""),
            "HOST": parts.hostname or "",
            "PORT": parts.port or "",
        }
        django_settings.configure(DATABASES={"default": database, OTHER: dict(database)})

    def turn(self, name: str) -> Turn:
        held: list[Any] = []
        key = self._scope.key(name)

        def acquire() -> object:
            block = advisory_lock(key)
            held.append(block)
            return block.__enter__()

        return acquire, lambda: held.pop().__exit__(None, None, None)

    def refused(self, name: str) -> bool:
        with advisory_lock(self._scope.key(name), wait=False, using=OTHER) as acquired:
            return not acquired

    def close(self) -> None:
        django_connections.close_all()


blocking = Blocking
