"""What is shown over the table: one lock in full, the question before a lock is broken, and the keys."""

from __future__ import annotations

from typing import cast

from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from leasehold._inspection import LockInfo
from leasehold.cli.break_ import MEANING
from leasehold.cli.output import printable, seconds
from leasehold.cli.show import describe
from leasehold.cli.top.looks import Row

BOX = """
{name} {{ align: center middle; }}
{name} > Vertical, {name} > VerticalScroll {{
    width: 90%; max-width: 110; height: auto; max-height: 90%; border: round ansi_blue; padding: 0 1;
}}
"""


class Inspect(ModalScreen[None]):
    """One lock: its holders, its queue in order, meta. Each look renews it."""

    DEFAULT_CSS = BOX.format(name="Inspect")

    BINDINGS = [Binding("escape,q,enter", "dismiss", "Back"), Binding("b", "break", "Break")]  # noqa: RUF012

    def __init__(self, row: Row) -> None:
        super().__init__()
        self.name_shown = row.info.name
        self.info: LockInfo | None = row.info
        self._text = _text(row)

    def compose(self) -> ComposeResult:
        with VerticalScroll(can_focus=True):
            yield Static(self._text, id="facts", markup=False)
            yield Static("\nEsc back   b break   ↑ ↓ scroll", markup=False)

    def renew(self, row: Row | None) -> None:
        """Show what the last look saw; None: nobody holds it or waits any more."""
        self.info = None if row is None else row.info
        free = f"{printable(self.name_shown)} is free: nobody holds it and nobody waits"
        self.query_one("#facts", Static).update(free if row is None else _text(row))

    async def action_break(self) -> None:
        """Leave the question to the program, which breaks the lock."""
        app = cast("App[None]", self.app)  # pyright: ignore[reportUnknownMemberType]  # a screen does not know whose it is
        await app.run_action("break_chosen")


def _text(row: Row) -> str:
    lines = describe(row.info)
    if row.info.holders:
        lines.insert(1, f"{'oldest hold' if len(row.info.holders) > 1 else 'held'} for "
                     f"{'at least ' if row.age_at_least else ''}{seconds(row.age)}, "
                     f"{'at least ' if row.rate_at_least else ''}{row.rate:.1f} hand-overs a second")  # fmt: skip
    return "\n".join(lines)


class Break(ModalScreen[int | None]):
    """The question before a lock is broken. It returns the token of the holder to break, or None.

    The holders are those of the moment in which the question was asked: a later one is never broken.
    """

    DEFAULT_CSS = BOX.format(name="Break")

    BINDINGS = [Binding("escape", "refuse", "Cancel")]  # noqa: RUF012

    def __init__(self, info: LockInfo) -> None:
        super().__init__()
        self._info = info

    def compose(self) -> ComposeResult:
        what = "its token" if len(self._info.holders) > 1 else "the name or the token"
        with Vertical():
            yield Static("\n".join(describe(self._info)[: 1 + len(self._info.holders)]), markup=False)
            yield Static(f"\n{MEANING}", markup=False)
            yield Static(f"\nTo break a holder, type {what} and press Enter. Esc cancels.", id="answer", markup=False)
            yield Input(placeholder=what)

    def on_mount(self) -> None:
        """Let the keys go into the field."""
        self.query_one(Input).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Break the holder that was named, or say why not."""
        typed = event.value.strip()
        tokens = [holder.token for holder in self._info.holders if holder.token is not None]
        if typed in (printable(self._info.name), self._info.name) and len(tokens) == 1:
            self.dismiss(tokens[0])
        elif typed in map(str, tokens):
            self.dismiss(int(typed))
        else:
            what = "the token of a holder" if len(tokens) > 1 else "the name nor the token"
            self.query_one("#answer", Static).update(f"\n'{printable(typed)}' is not {what}: nothing is broken. "
                                                     "Type it again, or press Esc.")  # fmt: skip

    def action_refuse(self) -> None:
        """Break nothing."""
        self.dismiss(None)


KEYS = """\
↑ ↓  PgUp PgDn  Home End   move
/                          filter: names that contain a text; Esc removes it
w n a l o                  sort by waiters, name, age, lease left, hand-overs; again: the other way round
Enter                      inspect: holders, queue in order, meta
b                          break: take the lock from a holder, after a question
p                          pause and continue
r                          look now
q                          quit

≥ is a lower bound. A hand-over is seen at most once in a look, so a shorter --interval sees more of them.
An age with ≥ counts from the first look, where the store's tokens do not tell when a lock was granted.\
"""


class Help(ModalScreen[None]):
    """The keys."""

    DEFAULT_CSS = BOX.format(name="Help")

    BINDINGS = [Binding("escape,q,enter,question_mark", "dismiss", "Back")]  # noqa: RUF012

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(KEYS, markup=False)
