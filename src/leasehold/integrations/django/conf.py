"""The settings ``LEASEHOLD`` and ``LEASEHOLD_MIGRATE``, checked: each mistake is named with its remedy."""
# pyright: basic
# (Django has no types)

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from django import conf as project  # as a name here, its lazy settings would break code that inspects this module
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from leasehold import _validate
from leasehold._model import RESPONSE_TIMEOUT
from leasehold._url import Secret
from leasehold.integrations.django.databases import url_of
from leasehold.stores import registry

DEFAULT = "default"

STORE_KEYS = ("URL", "DATABASE", "NAMESPACE", "RESPONSE_TIMEOUT", "OBSERVER")
MIGRATE_KEYS = ("ON", "TIMEOUT", "POOLER")

EXAMPLE = 'LEASEHOLD = {"default": {"URL": "redis://localhost:6379"}}'

DATABASE = "database"
"""What ``LEASEHOLD_MIGRATE["ON"]`` is by default: the database that migrates."""


@dataclass(frozen=True)
class StoreSettings:
    """One entry of ``LEASEHOLD``. Its repr has no password.

    Attributes:
        url: of the store.
        options: the keywords of `Client.from_url`.
    """

    url: Secret
    options: Mapping[str, Any]


@dataclass(frozen=True)
class MigrateSettings:
    """``LEASEHOLD_MIGRATE``.

    Attributes:
        on: ``database``, the alias of a store, or None for no lock.
        timeout: seconds to wait for another process that migrates; None is without end.
        pooler: ``session`` says that a pooler in front of PostgreSQL keeps a session for each client.
    """

    on: str | None = DATABASE
    timeout: float | None = 600.0
    pooler: str = ""


def aliases() -> list[str]:
    """Return the aliases of the stores.

    Raises:
        ImproperlyConfigured: ``LEASEHOLD`` is no mapping.
    """
    given = getattr(project.settings, "LEASEHOLD", {})
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured(f"LEASEHOLD is a mapping by alias, not {type(given).__name__}; write {EXAMPLE}")
    for alias in given:
        if not isinstance(alias, str):
            raise ImproperlyConfigured(f"LEASEHOLD has the alias {alias!r}, which is no str; write {EXAMPLE}")
    return list(given)


def store_settings(alias: str) -> StoreSettings:
    """Return the settings of a store, checked; nothing is sent.

    Raises:
        ImproperlyConfigured: they are missing, or one is wrong.
    """
    known = aliases()
    if alias not in known:
        if not known:
            raise ImproperlyConfigured(f"the setting LEASEHOLD is missing; write for example {EXAMPLE}")
        raise ImproperlyConfigured(f"LEASEHOLD has no {alias!r}; {_meant(alias, known)}known are: {', '.join(known)}")
    return _checked(f"LEASEHOLD[{alias!r}]", project.settings.LEASEHOLD[alias])


def migrate_settings() -> MigrateSettings:
    """Return ``LEASEHOLD_MIGRATE``, checked.

    Raises:
        ImproperlyConfigured: a value is wrong.
    """
    given = getattr(project.settings, "LEASEHOLD_MIGRATE", {})
    where = "LEASEHOLD_MIGRATE"
    _mapping(where, given, MIGRATE_KEYS)
    on = given.get("ON", DATABASE)
    if on is not None and on != DATABASE and on not in aliases():
        raise ImproperlyConfigured(
            f"{where}['ON'] is 'database', an alias of LEASEHOLD, or None for no lock, not {on!r}"
        )
    timeout, pooler = given.get("TIMEOUT", MigrateSettings.timeout), given.get("POOLER", "")
    if pooler not in ("", "session"):
        raise ImproperlyConfigured(f"{where}['POOLER'] is 'session', or left out, not {pooler!r}")
    return MigrateSettings(on, _valid(where, "TIMEOUT", lambda: _validate.timeout(timeout)), pooler)


def _checked(where: str, given: Any) -> StoreSettings:
    _mapping(where, given, STORE_KEYS)
    if ("URL" in given) == ("DATABASE" in given):
        raise ImproperlyConfigured(
            f"{where} needs either 'URL', such as 'redis://localhost:6379', or 'DATABASE', an alias of DATABASES"
        )
    hidden = url_of(where, given["DATABASE"]) if "DATABASE" in given else Secret(given["URL"])
    if not isinstance(hidden.reveal(), str):
        raise ImproperlyConfigured(f"{where}['URL'] is a str, not {type(hidden.reveal()).__name__}")
    key = "URL" if "URL" in given else "DATABASE"
    _valid(where, key, lambda: registry.opener(hidden))
    namespace, answer = given.get("NAMESPACE", "default"), given.get("RESPONSE_TIMEOUT", RESPONSE_TIMEOUT)
    _valid(where, "NAMESPACE", lambda: _validate.name(namespace, "namespace"))
    _valid(
        where,
        "RESPONSE_TIMEOUT",
        lambda: _validate.above_zero(answer, "response_timeout", _validate.LONGEST_ANSWER),
    )
    observer = _observer(where, given.get("OBSERVER"))
    return StoreSettings(hidden, {"namespace": namespace, "response_timeout": answer, "observer": observer})


def _observer(where: str, given: Any) -> Callable[..., Any] | None:
    found: Any = _valid(where, "OBSERVER", lambda: import_string(given)) if isinstance(given, str) else given
    if found is not None and not callable(found):
        raise ImproperlyConfigured(f"{where}['OBSERVER'] is a function of one event, or its dotted path")
    observer: Callable[..., Any] | None = found
    return observer


def _mapping(where: str, given: Any, known: tuple[str, ...]) -> None:
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured(f"{where} is a mapping, not {type(given).__name__}")
    for key in given:
        if key not in known:
            raise ImproperlyConfigured(
                f"{where} has no {key!r}; {_meant(str(key), known)}known are: {', '.join(known)}"
            )


def _valid(where: str, key: str, check: Callable[[], Any]) -> Any:
    try:
        return check()
    except (ValueError, TypeError, ImportError) as error:  # the latter: a driver that is not installed
        message = f"{where}[{key!r}]: {error}"
    raise ImproperlyConfigured(message)  # out here it has no frame with a URL in it


def _meant(given: str, known: Any) -> str:
    close = get_close_matches(given.upper() if given.upper() in known else given, list(known), 1)
    return f"did you mean {close[0]!r}? " if close else ""
