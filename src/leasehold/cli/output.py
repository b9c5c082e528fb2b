"""The output of commands: text that is safe for terminals and logs, without secrets; tables; JSON."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Sequence

from leasehold._inspection import Contender

SHOWN_AS_IS = frozenset({"L", "M", "N", "P", "S"})
"""First letters of the Unicode categories that are shown; of the others only the plain space."""

USERINFO = re.compile(r"(://[^\s/?#@:]*):(?!password@host(?![\w.-])[^\s@]*(?:\s|$))[^\s]*@")
"""User and password in a URL, but not in the example ``user:password@host`` of a remedy."""

SECRET_OPTION = re.compile(r"(?i)((?:[\w-]*(?:password|passwd|secret|token)[\w-]*)=)[^\s&'\"]*")

META_WIDTH = 40  # columns of META in a table, at most
NARROWEST_NAME, WIDEST_NAME = 16, 60  # columns of the names in a table: on a terminal at least, elsewhere at most
GAP = "  "  # between two columns of a table


def printable(text: str) -> str:
    """Return ``text`` with control and invisible characters escaped; different texts stay different.

    Names, owners and meta are written by strangers. Control characters could move the cursor. Characters that turn the
    direction of writing could make one name look like another.
    """
    return "".join(_escaped(char) for char in text)


def _escaped(char: str) -> str:
    if char == "\\":
        return "\\\\"
    if char == " " or unicodedata.category(char)[0] in SHOWN_AS_IS:
        return char
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def without_secrets(text: str) -> str:
    """Return a message without the passwords of URLs that may be in it."""
    return SECRET_OPTION.sub(r"\1***", USERINFO.sub(r"\1:***@", text))


def complain(message: str) -> None:
    """Print one line on standard error."""
    import click  # Django's checks use this file, and may do without

    line = without_secrets(message).replace("\n", " ")
    # Backslashes are not escaped: messages contain names that Python has quoted already.
    escaped = "".join(char if char == "\\" else _escaped(char) for char in line)
    click.echo(f"leasehold: {escaped}", err=True)


def meta_text(meta: object) -> str:
    """Return an owner's meta as one line."""
    if meta is None:
        return ""
    return printable(meta if isinstance(meta, str) else json.dumps(meta, ensure_ascii=False))


def seconds(value: float) -> str:
    """Format a duration: tenths of seconds below a minute, then minutes, then hours; an infinite one is "no end"."""
    if value == math.inf:
        return "no end"
    if value < 60:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def token_text(token: int | None) -> str:
    """Return a holder's token; "no token" for a lock of another program."""
    return "no token" if token is None else f"token {token}"


def who(contender: Contender) -> str:
    """Return the host and the pid of a holder or waiter; of another library's, which has no pid, its kind alone."""
    return f"{printable(contender.host)} pid {contender.pid}" if contender.pid else printable(contender.host)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], columns: int | None = None) -> str:
    """Format rows under heads.

    A terminal has ``columns``: the first column is shortened so that each row is one line, and then the end of a row.
    Elsewhere nothing is shortened, and a long first cell moves only its own row.
    """
    widths = [max(width_of(row[at]) for row in (heads, *rows)) for at in range(len(heads))]
    others = sum(widths[1:]) + len(GAP) * len(widths[1:])
    widths[0] = min(widths[0], WIDEST_NAME if columns is None else max(columns - others, NARROWEST_NAME))
    lines: list[str] = []
    for first, *rest in (heads, *rows):
        cells = (first if columns is None else shortened(first, widths[0]), *rest)
        padded = (cell + " " * (width - width_of(cell)) for cell, width in zip(cells, widths, strict=True))
        line = GAP.join(padded).rstrip()
        lines.append(line if columns is None else shortened(line, columns))
    return "\n".join(lines)


def shortened(text: str, width: int = META_WIDTH) -> str:
    """Shorten a text to so many columns."""
    if width_of(text) <= width:
        return text
    while width_of(text) >= width:
        text = text[:-1]
    return text + "…"


def width_of(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def as_json(value: object) -> None:
    """Print JSON in plain ASCII, so that it contains no control character for a terminal.

    JSON has no infinity: a duration without end is ``null``.
    """
    import click

    finite = json.loads(json.dumps(value), parse_constant=lambda _: None)
    click.echo(json.dumps(finite, indent=2))
