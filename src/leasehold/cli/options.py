"""The options that commands share, and the command class that prints an error as one line with an exit code."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

import click

from leasehold.cli.codes import SIGNALLED, Exit
from leasehold.cli.output import complain

F = TypeVar("F", bound=Callable[..., Any])

_url = click.option(
    "--url",
    metavar="URL",
    help="The store. Default: the environment's LEASEHOLD_URL, or else SQLite in your state folder. "
    "The process list shows a password here: use LEASEHOLD_URL for it.",
)
_namespace = click.option(
    "--namespace",
    metavar="TEXT",
    envvar="LEASEHOLD_NAMESPACE",
    default="default",
    show_default=True,
    help="Names of different namespaces never collide.",
)
json_option = click.option("--json", "json_", is_flag=True, help="Print JSON, for programs.")


def store_options(command: F) -> F:
    """Add ``--url`` and ``--namespace``."""
    return _url(_namespace(command))


class Failed(click.ClickException):
    """The end of a command: a message and an exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = int(code)

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        return self.code

    def show(self, file: Any = None) -> None:
        """Print the message as one line."""
        complain(self.message)


class Command(click.Command):
    """A command whose errors are one line on standard error and an exit code of their own, never a traceback."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            raise usage(error) from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            raise usage(error) from None
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except KeyboardInterrupt:
            ctx.exit(SIGNALLED + 2)
        except Exception as error:
            raise _failed(error) from None


def usage(error: click.UsageError) -> click.ClickException:
    """Return the error for a mistake in the command line: one line that names the help."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return error
    hint = f" (see {error.ctx.command_path} --help)" if error.ctx is not None else ""
    return Failed(error.format_message().rstrip(".") + hint, Exit.USAGE)


def _failed(error: Exception) -> Failed:
    from leasehold.errors import MissingDriver, NameInUse, StoreUnavailable, Unsupported

    match error:
        case MissingDriver():
            return Failed(str(error), Exit.MISSING)
        case StoreUnavailable():
            return Failed(f"the store is unavailable: {error}", Exit.UNAVAILABLE)
        case NameInUse() | Unsupported():
            return Failed(str(error), Exit.WRONG_KIND)
        case ValueError() | TypeError() if _is_input(error):
            return Failed(str(error), Exit.USAGE)
        case OSError():
            return Failed(f"the store is unavailable: {error}", Exit.UNAVAILABLE)
    where = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{os.path.basename(where.filename)}:{where.lineno}"
    return Failed(
        f"internal error of leasehold: {type(error).__name__} at {place}: {error}; please report it", Exit.INTERNAL
    )


def _is_input(error: Exception) -> bool:
    """Return whether an error is about input: a check of values raised it, or the parser of URLs."""
    frames = traceback.extract_tb(error.__traceback__)
    return any(frame.name in ("from_url", "opener") or frame.filename.endswith("validate.py") for frame in frames)
