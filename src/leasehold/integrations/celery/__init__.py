"""Celery: tasks under a lock, tasks that are queued once, and a beat that may run on every node.

`LockedTask` and `locked_task` are for tasks, `ElectedScheduler` is for ``celery beat``. The settings are the app's:
``leasehold_url`` and ``leasehold_namespace``; those of beat are in `leasehold.integrations.celery.beat`.
"""

from typing import TYPE_CHECKING

from leasehold.integrations.celery.clients import client_of
from leasehold.integrations.celery.task import LockedTask, current_hold, locked_task

if TYPE_CHECKING:
    from leasehold.integrations.celery.beat import ElectedScheduler

__all__ = ["ElectedScheduler", "LockedTask", "client_of", "current_hold", "locked_task"]

if not TYPE_CHECKING:  # workers do not need what beat needs

    def __getattr__(name: str) -> object:
        if name != "ElectedScheduler":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from leasehold.integrations.celery.beat import ElectedScheduler

        return ElectedScheduler
