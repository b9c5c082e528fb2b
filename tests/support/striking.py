"""An exception at one step of a call, as a signal handler can raise it.

A handler runs between two instructions: at the start of a function, after a call, and at the end of a loop's turn. A
function that sees each instruction raises at each such place in turn, in each function of the package that runs in the
block's thread. CPython 3.12 and later call it by `sys.monitoring`: there, tracing sees a function's instructions only
from its second run on.
"""

from __future__ import annotations

import dis
import gc
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import get_ident
from types import CodeType, FrameType
from typing import Any

import leasehold

monitoring: Any = getattr(sys, "monitoring", None)

HOME = str(Path(leasehold.__file__).parent)

PLACES = ("RESUME", "CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD")
"""Instructions after which the interpreter runs signal handlers."""


def interruptible(code: CodeType, known: dict[CodeType, set[int]]) -> set[int]:
    """Return the offsets of the instructions before which a handler may have run.

    An exception of the handler belongs to the instruction before. The tracing function raises one instruction later.
    Places where the two are in different ``try`` or ``with`` blocks are skipped: another block would catch it. What
    CPython 3.12 and later put around each coroutine, for `StopIteration`, does not count.
    """
    if code not in known:
        found, before, offset = set[int](), "", 0
        bytecode = dis.Bytecode(code)
        of_coroutines = {step.offset for step in bytecode if step.opname == "CALL_INTRINSIC_1"}
        entries = [entry for entry in bytecode.exception_entries if entry.target not in of_coroutines]
        caught = [(entry.start, entry.end, entry.target) for entry in entries]

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
    """Raises at the k-th place where a handler could.

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
        self.thread = 0

    def trace(self, frame: FrameType, event: str, arg: object) -> Any:
        """Take an event of a tracing function."""
        if not frame.f_code.co_filename.startswith(HOME):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        if event == "opcode":
            self._meet(frame.f_code, frame.f_lasti, frame)
        return self.trace

    def monitor(self, code: CodeType, offset: int) -> Any:
        """Take an instruction that any thread is about to execute."""
        if not code.co_filename.startswith(HOME):
            return monitoring.DISABLE
        if get_ident() == self.thread:
            self._meet(code, offset, sys._getframe(1))
        return None

    def _meet(self, code: CodeType, offset: int, frame: FrameType) -> None:
        if offset not in interruptible(code, self._known):
            return
        self._met_at[code, offset] += 1
        self.met += self._met_at[code, offset] <= self._turns
        if self.met == self._at + 1:
            self.where = f"{code.co_filename}:{frame.f_lineno} in {code.co_name}"
            raise self._error(143)


@contextmanager
def tracing(striking: Striking) -> Iterator[None]:
    """Let it see each instruction of a block. Meanwhile no garbage is collected: what a finalizer raises is lost."""
    before, collects = sys.gettrace(), gc.isenabled()
    gc.disable()
    try:
        if monitoring is None:
            sys.settrace(striking.trace)
        else:
            striking.thread = get_ident()
            monitoring.use_tool_id(monitoring.DEBUGGER_ID, __name__)
            monitoring.register_callback(monitoring.DEBUGGER_ID, monitoring.events.INSTRUCTION, striking.monitor)
            monitoring.set_events(monitoring.DEBUGGER_ID, monitoring.events.INSTRUCTION)
        yield
    finally:
        if monitoring is None:
            sys.settrace(before)
        else:
            monitoring.set_events(monitoring.DEBUGGER_ID, monitoring.events.NO_EVENTS)
            monitoring.free_tool_id(monitoring.DEBUGGER_ID)
        if collects:
            gc.enable()


@contextmanager
def ended_by(striking: Striking) -> Iterator[None]:
    """Trace a block, which must end by the exception if that is raised, and suppress it there."""
    try:
        with tracing(striking):
            yield
    except SystemExit:
        return
    assert not striking.where, f"{striking.where}: the exception was swallowed"
