"""The options of a locked task, checked when the task is created."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from leasehold import _validate
from leasehold.primitives.calls.synchronized import CallName, Naming
from leasehold.primitives.locks.semaphore import permits_of

__all__ = ["Naming", "OnBusy", "TaskLock", "Unique"]

OnBusy = Literal["retry", "skip", "reject"]
Unique = Literal["until_started", "until_ended"]

OPTIONS = ("lock", "on_busy", "permits", "wait", "countdown", "lease", "unique", "unique_for")


@dataclass(frozen=True, slots=True)
class TaskLock:
    """The lock of one task class.

    Attributes:
        naming: the name for each call.
    """

    naming: CallName

    @classmethod
    def of(cls, task: type) -> TaskLock | None:
        """Check a task class; None if it has no lock, and is only the base of others.

        Raises:
            ValueError, TypeError: the name does not fit the arguments of ``run``, or an option is out of its bounds.
        """
        options = {name: inspect.getattr_static(task, name) for name in OPTIONS}
        run = inspect.getattr_static(task, "run")
        if options["lock"] is None:
            return None
        static = isinstance(run, staticmethod)
        return cls.check(options, run.__func__ if static else run, bound=not static)

    @classmethod
    def check(cls, options: Mapping[str, Any], function: Callable[..., Any], *, bound: bool) -> TaskLock:
        """Check the options of a task; ``bound`` is whether the function's first argument is the task itself."""
        _one_of(options["on_busy"], "on_busy", get_args(OnBusy))
        if options["unique"] is not None:
            _one_of(options["unique"], "unique", get_args(Unique))
        if options["permits"] is not None:
            permits_of(options["permits"])
        _validate.at_least_zero(options["wait"], "wait")
        _validate.lease(options["lease"])
        for name in ("countdown", "unique_for"):
            _validate.above_zero(options[name], name)
        naming: Naming = options["lock"]
        if isinstance(naming, staticmethod):
            naming = cast("Naming", naming.__func__)
        return cls(CallName(naming, _without_self(function) if bound else function, None))


def _one_of(value: object, what: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{what} must be one of {', '.join(known)}, not {value!r}")


def _without_self(function: Callable[..., Any]) -> Callable[..., Any]:
    bound: Callable[..., Any] = function.__get__(object())  # its signature leaves out the first argument
    return bound
