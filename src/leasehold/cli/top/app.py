"""The program: one look at the store for each refresh, a table of it, and the keys.

A thread asks the store (`poller`), so keys react while it does not answer. At most one look is under way: a slow store
gets fewer of them. When the store does not answer, the last rows stay, dimmed, and each interval tries again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.widgets import Footer, Input, Static

from leasehold import Client
from leasehold.cli.break_ import OF_ANOTHER_PROGRAM
from leasehold.cli.output import printable, seconds, without_secrets
from leasehold.cli.top.looks import SORTS, Looks, Row
from leasehold.cli.top.poller import Look, Poller
from leasehold.cli.top.screens import Break, Help, Inspect
from leasehold.cli.top.table import LockTable
from leasehold.errors import StoreUnavailable

THEMES = ("ansi-dark", "textual-ansi")
"""The theme with the terminal's own 16 colors, by its names in the versions of Textual."""


class Top(App[None]):
    """The locks of a store, live."""

    TITLE = "leasehold top"
    ENABLE_COMMAND_PALETTE = False

    CSS = """
    #status { height: 1; text-style: bold; }
    #status.bad { color: ansi_red; }
    #message { height: auto; max-height: 3; display: none; }
    #filter { display: none; border: none; height: 1; padding: 0; }
    """

    BINDINGS = [  # noqa: RUF012  # as Textual declares it
        Binding("slash", "filter", "Filter", priority=True),  # done before the next key of the same packet is read
        Binding("escape", "clear", "Clear", show=False),
        *(Binding(key, f"sort('{sort}')", sort, show=False) for key, sort in zip("wnalo", SORTS, strict=True)),
        Binding("b", "break_chosen", "Break"),
        Binding("p", "pause", "Pause"),
        Binding("r", "refresh_now", "Look now", show=False),
        Binding("question_mark", "help", "Keys"),
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", "Quit", show=False, priority=True),
    ]

    def __init__(
        self, client: Client, *, prefix: str = "", interval: float = 2.0, sort: str = "waiters", where: str = ""
    ) -> None:
        super().__init__()
        self._client, self._prefix, self._interval, self._where = client, prefix, interval, where
        self._sort, self._reverse, self._filter = sort, False, ""
        self._looks, self._rows = Looks(), list[Row]()
        self._poller: Poller | None = None
        self._asked: float | None = None  # when the look was sent that is under way
        self._last: float | None = None  # when the last look was answered
        self._failure = ""
        self._paused = False

    # --- the frame ---------------------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        yield Static("", id="status", markup=False)
        yield LockTable()
        yield Static("", id="message", markup=False)
        yield Input(placeholder="names that contain …", id="filter")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Look for the first time, and then each interval."""
        self.theme = next(theme for theme in THEMES if theme in self.available_themes)
        self._table.focus()
        self._poller = Poller(self._client, self._prefix)
        self.set_interval(self._interval, self._tick)
        self._look()

    def on_unmount(self) -> None:
        """End the thread."""
        if self._poller is not None:
            self._poller.close()

    @property
    def _table(self) -> LockTable:
        return self.screen_stack[0].query_one(LockTable)

    # --- looks -------------------------------------------------------------------------------------------------------

    def _frame_is_there(self) -> bool:
        return bool(self.screen_stack and self.screen_stack[0].query("#status"))

    def _tick(self) -> None:
        if not self._frame_is_there():
            return
        if not self._paused:
            self._look()
        self._show_status()

    def _look(self) -> None:
        if self._asked is None and self._poller is not None:
            self._asked = time.monotonic()
            inspected = self.screen.name_shown if isinstance(self.screen, Inspect) else None
            self._poller.look(inspected, self._here(self._looked))

    def _here(self, method: Callable[[Any], None]) -> Callable[[object], None]:
        """Return what calls a method in the thread of the screen, unless that has ended."""

        def answer(outcome: object) -> None:
            if self.is_running:
                self.call_later(method, outcome)

        return answer

    def _looked(self, outcome: Look | Exception) -> None:
        self._asked = None
        if not self._frame_is_there():
            return  # the program ends
        if isinstance(outcome, Look):
            self._failure, self._last = "", outcome.now
            self._rows = self._looks.add(outcome.infos, sent=outcome.sent, now=outcome.now, wall=outcome.wall)
        else:
            self._failure = _reason(outcome)
        self._show()

    # --- what is shown -----------------------------------------------------------------------------------------------

    def _show(self) -> None:
        self._show_status()
        rows = self._chosen_rows()
        empty = "no lock is held" + (f" whose name begins with '{printable(self._prefix)}'" if self._prefix else "")
        if self._rows:
            empty = f"no name contains '{printable(self._filter)}'; Esc removes the filter"
        elif self._last is None:
            empty = "looking …"
        self._table.show(rows, sorted_by=self._sort, stale=bool(self._failure), empty=empty)
        for screen in self.screen_stack:
            if isinstance(screen, Inspect) and not self._failure:
                screen.renew(next((row for row in self._rows if row.info.name == screen.name_shown), None))

    def _chosen_rows(self) -> Sequence[Row]:
        text = self._filter.casefold()
        rows = [row for row in self._rows if text in printable(row.info.name).casefold()] if text else [*self._rows]
        rows.sort(key=SORTS["name"])
        rows.sort(key=SORTS[self._sort], reverse=self._reverse)
        return rows

    def _show_status(self) -> None:
        status = self.screen_stack[0].query_one("#status", Static)
        status.set_class(bool(self._failure), "bad")
        status.update(self._status())

    def _status(self) -> str:
        ago = "" if self._last is None else f"; this is of {seconds(time.monotonic() - self._last)} ago"
        if self._failure:
            return f"{self._failure}{ago}; trying again every {seconds(self._interval)}"
        held = sum(len(row.info.holders) for row in self._rows)
        waiting = sum(len(row.info.waiters) for row in self._rows)
        parts = [printable(self._where), f"{len(self._rows)} names, {held} holders, {waiting} waiters"]
        parts += [f"filter '{printable(self._filter)}'"] if self._filter else []
        parts += [f"PAUSED{ago}" if self._paused else f"every {seconds(self._interval)}"]
        late = time.monotonic() - self._asked if self._asked is not None else 0.0
        parts += [f"no answer for {seconds(late)}"] if late > max(self._interval, 1.0) else []
        return "   ".join(part for part in parts if part)

    def _say(self, text: str) -> None:
        message = self.screen_stack[0].query_one("#message", Static)
        message.update(text)
        message.display = bool(text)

    # --- keys --------------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Switch the keys of the table off while something is shown over it."""
        if action == "filter" and isinstance(self.focused, Input):
            return False  # a slash in the text
        over = len(self.screen_stack) > 1
        return not over or action == "break_chosen" or action not in {
            "filter", "clear", "sort", "pause", "help", "refresh_now",
        }  # fmt: skip

    def action_filter(self) -> None:
        """Open the field of the filter."""
        field = self.query_one("#filter", Input)
        field.display = True
        field.value = self._filter
        self.screen.set_focus(field)  # at once: `focus` would leave keys that came in the same packet to the table

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while the text is typed."""
        if event.input.id == "filter" and event.input.display:
            self._filter = event.value
            self._show()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the filter, and go back to the table."""
        if event.input.id == "filter":
            self._close_filter()

    def action_clear(self) -> None:
        """Remove the filter and the last message."""
        self._filter = ""
        self._say("")
        self._close_filter()

    def _close_filter(self) -> None:
        self.query_one("#filter", Input).display = False
        self.screen.set_focus(self._table)
        self._show()

    def action_sort(self, key: str) -> None:
        """Sort by a key; the same key again reverses the order."""
        self._reverse = key == self._sort and not self._reverse
        self._sort = key
        self._show()

    def action_pause(self) -> None:
        """Stop looking, or look again."""
        self._paused = not self._paused
        self._tick()

    def action_refresh_now(self) -> None:
        """Look at once, also while paused."""
        self._look()

    def action_help(self) -> None:
        """Show the keys."""
        self.push_screen(Help())

    def on_lock_table_chosen(self) -> None:
        """Show one lock in full."""
        if self._table.chosen is not None:
            self.push_screen(Inspect(self._table.chosen))
            self._look()

    def action_break_chosen(self) -> None:
        """Ask whether the lock is to be taken from its holder."""
        screen = self.screen
        row = self._table.chosen
        info = screen.info if isinstance(screen, Inspect) else row.info if row is not None else None
        if isinstance(screen, Break | Help) or info is None:
            return
        if not info.holders:
            self._say(f"nobody holds '{printable(info.name)}'")
            return
        if all(holder.token is None for holder in info.holders):
            self._say(f"'{printable(info.name)}' is {OF_ANOTHER_PROGRAM}")
            return
        self.push_screen(Break(info), lambda token: self._break(info.name, token))

    def _break(self, name: str, token: int | None) -> None:
        if token is None or self._poller is None:
            return
        self._say(f"breaking '{printable(name)}', token {token} …")
        self._poller.force_release(name, token, self._here(lambda outcome: self._broken(name, token, outcome)))

    def _broken(self, name: str, token: int, outcome: bool | Exception) -> None:
        which = f"the holder of '{printable(name)}' with token {token}"
        if isinstance(outcome, Exception):
            unknown = isinstance(outcome, StoreUnavailable) and outcome.unknown
            self._say(f"{'it is unknown whether' if unknown else 'not broken:'} {which} "
                      f"{'was broken' if unknown else 'was left alone'}: {_reason(outcome)}")  # fmt: skip
        elif outcome:
            self._say(f"broken: {which} has lost the lock. It is notified at its next renewal")
        else:
            self._say(f"not broken: {which} is gone; it was released, lost or passed on")
        self._look()


def _reason(error: Exception) -> str:
    """Return a line about a request that failed."""
    text = printable(without_secrets(str(error))) or type(error).__name__
    if isinstance(error, StoreUnavailable | OSError):
        return f"the store is unavailable: {text}"
    return f"{type(error).__name__}: {text}"
