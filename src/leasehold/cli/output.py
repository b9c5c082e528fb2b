"""What commands print: text made safe for terminals and logs, secrets taken out, tables, JSON."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import asdict

import click

from leasehold._inspection import Contender, LockInfo

SHOWN_AS_IS = frozenset({"L", "M", "N", "P", "S"})
"""First letters of the Unicode categories that are shown; of the others only the plain space."""

USERINFO = re.compile(r"(://[^\s/?#@:]*):[^\s]*@")
SECRET_OPTION = re.compile(r"(?i)((?:[\w-]*(?:password|passwd|secret|token)[\w-]*)=)[^\s&'\"]*")

META_WIDTH = 40
"""Columns that a table gives to what an owner says of itself."""


def printable(text: str) -> str:
    """Return ``text`` with all that a terminal might obey spelled out, so that each text has its own spelling.

    Names, owners and meta are written by strangers: control characters could move the cursor, and characters that turn
    the direction of writing could make one name look like another.
    """
    return "".join(_spelled(char) for char in text)


def _spelled(char: str) -> str:
    if char == "\\":
        return "\\\\"
    if char == " " or unicodedata.category(char)[0] in SHOWN_AS_IS:
        return char
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def without_secrets(text: str) -> str:
    """Return a message without the passwords of URLs that may have got into it."""
    return SECRET_OPTION.sub(r"\1***", USERINFO.sub(r"\1:***@", text))


def complain(message: str) -> None:
    """Print one line on standard error."""
    line = " ".join(without_secrets(message).split("\n"))
    click.echo(f"leasehold: {_tame(line)}", err=True)


def _tame(line: str) -> str:
    """Spell out control characters, and leave backslashes: messages hold names that Python has quoted already."""
    return "".join(char if char == "\\" else _spelled(char) for char in line)


def meta_text(meta: object) -> str:
    """Show in one line what an owner said of itself."""
    if meta is None:
        return ""
    return printable(meta if isinstance(meta, str) else json.dumps(meta, ensure_ascii=False))


def seconds(value: float) -> str:
    """Show a duration: tenths below a minute, then minutes, then hours."""
    if value < 60:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def who(contender: Contender) -> str:
    """Show whose process it is."""
    return f"{printable(contender.host)} pid {contender.pid}"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out rows under heads, in columns."""
    widths = [max(_columns(row[at]) for row in (heads, *rows)) for at in range(len(heads))]
    lines: list[str] = []
    for row in (heads, *rows):
        cells = (cell + " " * (width - _columns(cell)) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def shortened(text: str, width: int = META_WIDTH) -> str:
    """Cut a text for a table."""
    return text if len(text) <= width else text[: width - 1] + "…"


def _columns(text: str) -> int:
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def as_json(value: object) -> None:
    """Print JSON: plain ASCII, so that no terminal obeys what is in it."""
    click.echo(json.dumps(value, indent=2))


def lock_record(info: LockInfo) -> dict[str, object]:
    """Return what ``--json`` shows of one name."""
    return asdict(info)
