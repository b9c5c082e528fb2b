"""dramatiq: messages of an actor run under a lock that their arguments name.

A middleware: it wraps the function of each actor that has the option ``lock``.
"""

from __future__ import annotations

from typing import Any

import dramatiq
from dramatiq.middleware import MiddlewareError

from leasehold import AcquireTimeout, Client
from leasehold._validate import Seconds, at_least_zero
from leasehold.integrations._common.queues import run_under_lock


class BadLock(MiddlewareError, ValueError, TypeError):
    """The lock of an actor has a mistake. Of all exceptions of a middleware, dramatiq passes on only its own kind."""


class LockMiddleware(dramatiq.Middleware):
    """Adds options to actors: ``lock``, ``on_busy``, ``lease``, ``wait``, ``hold``.

    Args:
        client: acquires the locks; the worker's processes and threads share it.
        delay: seconds after which a message whose lock was busy is retried.
    """

    def __init__(self, client: Client, *, delay: Seconds = 5.0) -> None:
        self._client = client
        self._delay = round(at_least_zero(delay, "delay") * 1000)

    @property
    def actor_options(self) -> set[str]:
        """The options that an actor may have."""
        return {"lock", "on_busy", "lease", "wait", "hold"}

    def before_declare_actor(self, broker: dramatiq.Broker, actor: dramatiq.Actor[..., Any]) -> None:
        """Wrap the function of an actor that has a lock; raise `BadLock` if an option does not fit it."""
        try:
            self._wrap(actor, actor.options)
        except Exception as error:
            raise BadLock(f"the actor {actor.actor_name!r}: {error}") from error

    def _wrap(self, actor: dramatiq.Actor[..., Any], given: dict[str, Any]) -> None:
        if (name := given.get("lock")) is None:
            return
        decorate = run_under_lock(
            self._client,
            name,
            self._busy,
            on_busy=given.get("on_busy", "retry"),
            lease=given.get("lease", 30.0),
            wait=given.get("wait", 0.0),
            hold=given.get("hold"),
        )
        function = actor.fn
        if isinstance(function, dramatiq.GenericActor):  # its `perform` has the arguments
            function.perform = decorate(function.perform)  # type: ignore[method-assign]
        else:
            actor.fn = decorate(function)

    def _busy(self, error: AcquireTimeout) -> None:
        raise dramatiq.Retry(str(error), delay=self._delay)
