"""The options and exit codes that commands share, and errors that are printed as one line with an exit code."""

from __future__ import annotations

import math
import os
import re
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, TypeVar

import click

from leasehold.cli.output import complain


class Exit(IntEnum):
    """Exit codes other than 0. Those of ``run`` keep clear of what programs use; most are of ``sysexits.h``."""

    NO = 1  # show: the name is free; break: that holder was gone; doctor: a warning
    BAD = 2  # doctor: an error
    MISSING = 3  # an extra is not installed
    USAGE = 64  # a mistake in the command line, the URL, or a value
    WRONG_KIND = 65  # the name is in use as another primitive, or the store cannot do what was asked
    UNAVAILABLE = 69  # the store does not answer, or refuses
    INTERNAL = 70  # an internal error of leasehold
    IO = 74  # the output, or another file, cannot be written or read
    TAKEN = 75  # another client holds the lock; try again later
    LOST = 76  # the lock was lost while the command ran
    NOT_EXECUTABLE = 126
    NOT_FOUND = 127


SIGNALLED = 128  # added to the number of the signal that ended the command, as shells do


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


UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}

DURATIONS = "TIME is in seconds, or has a unit: 30, 1.5s, 5m, 1h, 1h30m."
"""The last line of the help of a command with a `Duration`."""


class Duration(click.ParamType):  # type: ignore[type-arg]  # pyright: ignore  # generic in newer versions only
    """Seconds, or numbers with units: ``30``, ``1.5s``, ``5m``, ``1h30m``."""

    name = "time"

    def __init__(self, least: float = 0.0, most: float = math.inf) -> None:
        self._least, self._most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds; a value that is a number already, such as a default, stays one."""
        length = _seconds(str(value).strip())
        if length is None:
            self.fail(f"{value!r} is no time; write seconds, or add a unit: 30, 1.5s, 5m, 1h", param, ctx)
        if not self._least <= length <= self._most:
            end = "" if self._most == math.inf else f" and {self._most:g} s at most"
            self.fail(f"{value!r} must be {self._least:g} s at least{end}", param, ctx)
        return length


def _seconds(text: str) -> float | None:
    if re.fullmatch(r"(?:(?:\d+\.?\d*|\.\d+)(?:ms|s|m|h|d))+", text, re.ASCII):
        return sum(float(number) * UNITS[unit] for number, unit in re.findall(r"([\d.]+)(ms|s|m|h|d)", text))
    try:
        return float(text)
    except ValueError:
        return None


def store_options(command: F) -> F:
    """Add ``--url`` and ``--namespace``."""
    return _url(_namespace(command))


def one_url(argument: str | None, option: str | None) -> str | None:
    """Return the URL of a command that takes it as an argument or as ``--url``."""
    if argument is not None and option is not None:
        raise Failed("the URL is given twice; leave out --url or the argument", Exit.USAGE)
    return option if argument is None else argument


class Failed(click.ClickException):
    """The end of a command: a message, which is printed as one line, and an exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = int(code)

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        return self.code

    def show(self, file: Any = None) -> None:
        complain(self.message)


HELP: Any = getattr(click.exceptions, "NoArgsIsHelpError", click.exceptions.Exit)
"""Raised after a call without arguments has shown the help: click 8.1 exits, and the newer ones fail."""


@contextmanager
def one_line_errors() -> Generator[None]:
    """Turn each error into one line on standard error and an exit code of its own, never a traceback."""
    try:
        yield
    except (click.exceptions.Exit, click.Abort, BrokenPipeError):
        raise
    except HELP as error:
        error.show()
        raise click.exceptions.Exit(Exit.USAGE) from None
    except click.UsageError as error:
        hint = f" (see {error.ctx.command_path} --help)" if error.ctx is not None else ""
        raise Failed(error.format_message().rstrip(".") + hint, Exit.USAGE) from None
    except click.ClickException:
        raise
    except KeyboardInterrupt:
        raise click.exceptions.Exit(SIGNALLED + 2) from None
    except Exception as error:
        raise _failed(error) from None


def _failed(error: Exception) -> Failed:
    from leasehold.errors import MissingDriver, NameInUse, StoreUnavailable, Unsupported

    match error:
        case MissingDriver():
            return Failed(str(error), Exit.MISSING)
        case NameInUse() | Unsupported():
            return Failed(str(error), Exit.WRONG_KIND)
        case ValueError() | TypeError() if _is_input(error):
            return Failed(str(error), Exit.USAGE)
        case StoreUnavailable():
            return Failed(f"the store is unavailable: {error}", Exit.UNAVAILABLE)
        case OSError():
            return Failed(f"cannot read or write: {error}", Exit.IO)
    where = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{os.path.basename(where.filename)}:{where.lineno}"
    return Failed(
        f"internal error of leasehold: {type(error).__name__} at {place}: {error}; please report it", Exit.INTERNAL
    )


def _is_input(error: Exception) -> bool:
    """Return whether an error is about input: a check of values raised it, or the parser of URLs."""
    frames = traceback.extract_tb(error.__traceback__)
    return any(frame.name in ("from_url", "opener") or frame.filename.endswith("validate.py") for frame in frames)
