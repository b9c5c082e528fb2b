"""The progress of long work on standard error."""

from __future__ import annotations

import os
import shutil
import sys
import time

import click

REDRAWN_EVERY = 0.1
"""Seconds between two redraws on a terminal, at least."""

SAID_EVERY = 10.0
"""Seconds between two lines where there is no terminal: a log shows that the work goes on."""


class StatusLine:
    """A line that is redrawn on a terminal. Elsewhere, and on a terminal that is dumb, a new line every 10 s."""

    def __init__(self) -> None:
        self._moves = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._shown = time.monotonic() - (REDRAWN_EVERY if self._moves else 0.0)

    def begin(self, text: str) -> None:
        """Show what begins: a line of its own where there is no terminal."""
        if self._moves:
            self._draw(text, ends=False)
        else:
            click.echo(text, err=True)

    def update(self, text: str) -> None:
        """Show what is done now, unless the last text is too recent."""
        now = time.monotonic()
        if now - self._shown < (REDRAWN_EVERY if self._moves else SAID_EVERY):
            return
        self._shown = now
        if self._moves:
            self._draw(text, ends=False)
        else:
            click.echo(text, err=True)

    def say(self, text: str) -> None:
        """Show a line that stays."""
        self._draw(text, ends=True)

    def clear(self) -> None:
        """Remove a line that would be redrawn."""
        if self._moves:
            click.echo("\r\x1b[K", nl=False, err=True)

    def _draw(self, text: str, *, ends: bool) -> None:
        if self._moves:
            text = "\r\x1b[K" + (text if ends else text[: shutil.get_terminal_size().columns - 1])
        click.echo(text, nl=ends, err=True)
