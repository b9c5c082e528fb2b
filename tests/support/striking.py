"""An exception at one step of a call, as a signal handler can raise it.

A handler runs between two instructions: at the start of a function, after a call, and at the end of a loop's turn. A
tracing function raises at each such place in turn, in each function of the package that runs in the block's thread.
"""

from __future__ import annotations

import dis
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import leasehold

HOME = str(Path(leasehold.__file__).parent)

PLACES = ("RESUME", "CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD")
"""Instructions after which the interpreter runs signal handlers."""


def interruptible(code: CodeType, known: dict[CodeType, set[int]]) -> set[int]:
    """Return the offsets of the instructions before which a handler may have run.

    An exception of the handler belongs to the instruction before. The tracing function raises one instruction later.
    Places where the two are in different ``try`` or ``with`` blocks are skipped: another block would catch it.
    """
    if code not in known:
        found, before, offset = set[int](), "", 0
        bytecode = dis.Bytecode(code)
        caught = [(entry.start, entry.end, entry.target) for entry in bytecode.exception_entries]

        def catches(at: int) -> list[int]:
            return [target for start, end, target in caught if start <= at < end]

        for step in bytecode:
            if before in PLACES and catches(offset) == catches(step.offset):
                found.add(step.offset)
            if step.opname != "CACHE":
                before, offset = step.opname, step.offset
        known[code] = found
    return known[code]


class Striking:
    """A tracing function that raises at the k-th place where a handler could.

    With ``turns`` a place counts only the first so many times: the later turns of a loop add time and no new state.
    """

    def __init__(
        self,
        at: int,
        known: dict[CodeType, set[int]],
        error: type[BaseException] = SystemExit,
        *,
        turns: int = sys.maxsize,
    ) -> None:
        self._at = at
        self._error = error
        self._known = known
        self._turns = turns
        self._met_at = Counter[tuple[CodeType, int]]()
        self.met = 0
        self.where = ""

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        if not frame.f_code.co_filename.startswith(HOME):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._step

    def _step(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "opcode" and frame.f_lasti in interruptible(frame.f_code, self._known):
            place = frame.f_code, frame.f_lasti
            self._met_at[place] += 1
            self.met += self._met_at[place] <= self._turns
            if self.met == self._at + 1:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
                raise self._error(143)
        return self._step


@contextmanager
def tracing(striking: Striking) -> Iterator[None]:
    before = sys.gettrace()
    sys.settrace(striking)
    try:
        yield
    finally:
        sys.settrace(before)


@contextmanager
def ended_by(striking: Striking) -> Iterator[None]:
    """Trace a block, which must end by the exception if that is raised, and suppress it there."""
    try:
        with tracing(striking):
            yield
    except SystemExit:
        return
    assert not striking.where, f"{striking.where}: the exception was swallowed"
