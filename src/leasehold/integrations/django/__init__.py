"""Django: locks by the settings, locks in a transaction, and a `manage.py migrate` that one container carries out.

Put ``"leasehold.integrations.django"`` first into ``INSTALLED_APPS``. The page docs/integrations/django.md has all of
it: `locks` and `alocks` are the clients of ``settings.LEASEHOLD``; `commands` has the mixin for commands that run once;
`fenced` has the field and the manager for fenced updates. ``leasehold.integrations.django.tables`` is an app of its
own, whose migration makes the tables of a store in Django's database.
"""

from leasehold.integrations.django.clients import AsyncLocks, Locks, alocks, locks
from leasehold.integrations.django.transactions import atomic_lock, transaction_lock

__all__ = ["AsyncLocks", "Locks", "alocks", "atomic_lock", "locks", "transaction_lock"]
