"""The table of names. It formats only the rows that are visible, so thousands of them cost nothing to draw."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from leasehold.cli.output import meta_text, printable, seconds, shortened, who, width_of
from leasehold.cli.top.looks import Row


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its head, its width, the key that sorts by it, and its text."""

    head: str
    width: int
    sort: str
    text: Callable[[Row], str]
    right: bool = False


def _holder(row: Row) -> str:
    holders = row.info.holders
    if not holders:
        return "free soon" if row.info.free_in > 0 else "nobody"
    first, *others = holders
    more = f" +{len(others)}" if others else ""
    return shortened(who(first), 24 - len(more)) + more


def _age(row: Row) -> str:
    return f"{'≥ ' if row.age_at_least else ''}{seconds(row.age)}" if row.info.holders else "-"


def _rate(row: Row) -> str:
    return f"{'≥ ' if row.rate_at_least else ''}{row.rate:.1f}" if row.rate else "-"


COLUMNS = (
    Column("WAITERS", 8, "waiters", lambda row: str(len(row.info.waiters)), right=True),
    Column("HOLDER", 24, "", _holder),
    Column("AGE", 10, "age", _age, right=True),
    Column("LEFT", 10, "left", lambda row: "-" if row.left == math.inf else seconds(row.left), right=True),
    Column("PER S", 7, "rate", _rate, right=True),
    Column("KIND", 9, "", lambda row: row.info.kind),
    Column("META", 24, "", lambda row: meta_text(row.info.holders[0].meta) if row.info.holders else ""),
)
"""The columns after the name. Where the terminal is narrow, the last ones are left out."""

NARROWEST, WIDEST = 20, 60  # columns of the name

PLAIN, HEAD, CHOSEN = Style(), Style(bold=True, reverse=True), Style(reverse=True)
LATE, STALE = Style(color="yellow"), Style(dim=True)


class LockTable(Widget, can_focus=True):
    """The rows, with one of them chosen. The choice stays with its name when the order changes."""

    DEFAULT_CSS = "LockTable { height: 1fr; }"

    BINDINGS = [  # noqa: RUF012  # as Textual declares it
        Binding("up,k", "move(-1)", "up", show=False),
        Binding("down,j", "move(1)", "down", show=False),
        Binding("pageup", "page(-1)", "page up", show=False),
        Binding("pagedown", "page(1)", "page down", show=False),
        Binding("home", "end(False)", "first", show=False),
        Binding("end", "end(True)", "last", show=False),
        Binding("enter", "choose", "Inspect"),
    ]

    class Chosen(Message):
        """Enter was pressed, or the chosen row was clicked."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: Sequence[Row] = ()
        self.sorted_by = ""
        self.stale = False  # the store does not answer: what is shown is old
        self.empty = ""  # shown if there are no rows
        self._at = 0
        self._first = 0

    @property
    def chosen(self) -> Row | None:
        """The row under the cursor."""
        return self.rows[self._at] if self._at < len(self.rows) else None

    def show(self, rows: Sequence[Row], *, sorted_by: str, stale: bool, empty: str) -> None:
        """Replace the rows."""
        name = chosen.info.name if (chosen := self.chosen) is not None else None
        self.rows, self.sorted_by, self.stale, self.empty = rows, sorted_by, stale, empty
        if self._at > 0:  # at the top the cursor stays at the top: that is where the interesting names come
            self._at = next((at for at, row in enumerate(rows) if row.info.name == name), self._at)
        self._move_to(self._at)

    def _move_to(self, at: int) -> None:
        room = max(self.size.height - 1, 1)
        self._at = max(0, min(at, len(self.rows) - 1))
        self._first = max(0, min(self._first, self._at, max(len(self.rows) - room, 0)))
        self._first = max(self._first, self._at - room + 1)
        self.refresh()

    def action_move(self, by: int) -> None:
        """Move the cursor by so many rows."""
        self._move_to(self._at + by)

    def action_page(self, by: int) -> None:
        """Move the cursor by so many pages."""
        self._move_to(self._at + by * max(self.size.height - 2, 1))

    def action_end(self, last: bool) -> None:
        """Move the cursor to the first or the last row."""
        self._move_to(len(self.rows) - 1 if last else 0)

    def action_choose(self) -> None:
        """Report that the chosen row is wanted."""
        if self.chosen is not None:
            self.post_message(self.Chosen())

    def on_resize(self) -> None:
        """Keep the cursor visible."""
        self._move_to(self._at)

    def on_click(self, event: events.Click) -> None:
        """Choose the row that was clicked; a click on the chosen one opens it."""
        at = self._first + event.y - 1
        if event.y >= 1 and at < len(self.rows):
            if at == self._at:
                self.action_choose()
            self._move_to(at)

    def on_mouse_scroll_down(self) -> None:
        """Move on."""
        self.action_move(3)

    def on_mouse_scroll_up(self) -> None:
        """Move back."""
        self.action_move(-3)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return the height of all rows."""
        return len(self.rows) + 1

    def render_line(self, y: int) -> Strip:
        """Draw one line: the head, or a row."""
        width = self.size.width
        text, style = self._line(y, *_fitting(width))
        text = shortened(text, width)
        return Strip([Segment(text + " " * (width - width_of(text)), style)], width)

    def _line(self, y: int, columns: Sequence[Column], name: int) -> tuple[str, Style]:
        at = self._first + y - 1
        if y == 0:
            heads = [each.head + ("*" if each.sort and each.sort == self.sorted_by else "") for each in columns]
            return _joined("NAME" + ("*" if self.sorted_by == "name" else ""), name, heads, columns), HEAD
        if at >= len(self.rows):
            return (self.empty, STALE) if y == 1 and not self.rows else ("", PLAIN)
        row = self.rows[at]
        text = _joined(printable(row.info.name), name, [each.text(row) for each in columns], columns)
        if at == self._at:
            return text, CHOSEN
        return text, STALE if self.stale else LATE if row.info.waiters else PLAIN


def _fitting(width: int) -> tuple[Sequence[Column], int]:
    """Return the columns that fit beside the name, and the width of the name."""
    columns = list(COLUMNS)
    while columns and (left := width - sum(each.width + 1 for each in columns)) < NARROWEST:
        columns.pop()
    left = width - sum(each.width + 1 for each in columns)
    return columns, min(left, WIDEST)


def _joined(name: str, width: int, texts: Sequence[str], columns: Sequence[Column]) -> str:
    cells = [_padded(name, width)]
    cells += [_padded(text, each.width, right=each.right) for text, each in zip(texts, columns, strict=True)]
    return " ".join(cells)


def _padded(text: str, width: int, *, right: bool = False) -> str:
    text = shortened(text, width)
    gap = " " * (width - width_of(text))
    return gap + text if right else text + gap
