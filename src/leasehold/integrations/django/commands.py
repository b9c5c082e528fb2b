"""`RunOnceMixin`: a management command that several containers start, and one runs."""
# pyright: basic
# (Django has no types)

from __future__ import annotations

from typing import Any, ClassVar

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError, OutputWrapper

from leasehold import Client, Hold
from leasehold._validate import Seconds
from leasehold.errors import LeaseLost, StoreUnavailable
from leasehold.integrations.django.clients import locks

BUSY = ("skip", "wait", "fail")

UNAVAILABLE, TAKEN, LOST = 69, 75, 76
"""Exit codes, those of ``leasehold run``."""


class RunOnceMixin:
    """Runs a command in one process at a time; write it before ``BaseCommand``.

    Attributes:
        lock_name: of the lock; ``command:`` and the command's name if it is None.
        lock_store: the alias of the store.
        lock_busy: what is done while another process runs it: ``skip`` it with exit code 0, ``wait``, or ``fail`` (75).
        lock_timeout: seconds to wait at most with ``wait``; None waits for ever.
        once_within: for a cron job of every container: seconds from the start of a run in which no other begins,
            though it be over. More than the containers' clocks differ, and less than the time between two runs.
        at_most: with ``once_within``, seconds after which a run has lost its right.
        hold: the hold while the command runs, for its token; None with ``once_within``.

    Example:
        <!-- not run: it needs a project -->
        ```python
        class Command(RunOnceMixin, BaseCommand):
            lock_busy = "skip"

            def handle(self, **options): ...
        ```
    """

    lock_name: ClassVar[str | None] = None
    lock_store: ClassVar[str] = "default"
    lock_busy: ClassVar[str] = "skip"
    lock_timeout: ClassVar[Seconds | None] = None
    once_within: ClassVar[Seconds | None] = None
    at_most: ClassVar[Seconds] = 3600.0
    hold: Hold | None = None

    def execute(self, *args: Any, **options: Any) -> Any:
        """Run the command under the lock, or do what ``lock_busy`` says.

        Raises:
            CommandError: another process runs it (75), the lock was lost meanwhile (76), or the store did not answer,
                or too late, and the command did not run (69).
        """
        if self.lock_busy not in BUSY:
            raise ImproperlyConfigured(f"lock_busy is one of {', '.join(BUSY)}, not {self.lock_busy!r}")
        if self.once_within is not None and self.lock_busy == "wait":
            raise ImproperlyConfigured("once_within never waits for another run: set lock_busy to 'skip' or 'fail'")
        name = self.lock_name or f"command:{type(self).__module__.rpartition('.')[2]}"
        try:
            if self.once_within is not None:
                return self._scheduled(name, *args, **options)
            return self._locked(name, *args, **options)
        except LeaseLost as error:
            if error.name not in (name, f"scheduled/{name}"):
                raise  # of a lock that the command itself uses
            raise CommandError(str(error), returncode=LOST) from error

    def _locked(self, name: str, *args: Any, **options: Any) -> Any:
        client = locks[self.lock_store]
        try:
            hold = client.lock(name).acquire(timeout=self.lock_timeout if self.lock_busy == "wait" else 0)
        except (StoreUnavailable, LeaseLost) as error:
            raise _not_run(name, error) from error
        if hold is None:
            return self._taken(name, _holder(client, name), options)
        with hold:
            self.hold = hold
            try:
                return super().execute(*args, **options)  # type: ignore[misc]
            finally:
                self.hold = None

    def _scheduled(self, name: str, *args: Any, **options: Any) -> Any:
        job = locks[self.lock_store].scheduled(name, at_least=self.once_within, at_most=self.at_most)
        began: list[bool] = []
        found: list[Any] = []

        def run() -> None:
            began.append(True)
            found.append(super(RunOnceMixin, self).execute(*args, **options))  # type: ignore[misc]

        try:
            ran = job.run(run)
        except (StoreUnavailable, LeaseLost) as error:
            if began:
                raise  # by the command itself, or its lock was lost
            raise _not_run(name, error) from error
        return found[0] if ran else self._taken(name, "", options)

    def _taken(self, name: str, where: str, options: dict[str, Any]) -> None:
        said = f"{name!r} runs in another process{where}, or has just run"
        if self.lock_busy != "skip":
            raise CommandError(said, returncode=TAKEN)
        given = options.get("stderr")  # which `BaseCommand.execute` would have taken
        stderr = OutputWrapper(given) if given else self.stderr  # type: ignore[attr-defined]
        stderr.write(f"{said}: skipped")


def _holder(client: Client, name: str) -> str:
    """Return who has the lock, in parentheses; an empty text if that cannot be known."""
    try:
        info = client.inspect(name)
    except StoreUnavailable:
        return ""
    return f" ({info.holders[0].owner})" if info is not None and info.holders else ""


def _not_run(name: str, error: Exception) -> CommandError:
    return CommandError(
        f"{name!r} did not run: it is unknown whether another process runs it: {error}", returncode=UNAVAILABLE
    )
