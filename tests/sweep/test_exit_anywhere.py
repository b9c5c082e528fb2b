"""`SystemExit` at every step of a block, as a signal handler raises it: when its client is closed, nothing is left.

A handler runs between two instructions: where a function begins, after a call, and where a loop goes back. A tracing
function raises there, in each function of the package that the block runs in its own thread, once at each place.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import leasehold
from leasehold import AcquireTimeout, Client
from leasehold.stores.memory import Memory

HOME = str(Path(leasehold.__file__).parent)

BLOCKS: dict[str, Callable[[Client], Any]] = {
    "lock": lambda client: client.lock("a", lease=60.0),
    "rlock": lambda client: client.rlock("a", lease=60.0),
    "writer": lambda client: client.rw_lock("a", lease=60.0).writer(),
    "semaphore": lambda client: client.semaphore("a", 2, lease=60.0),
    "multi_lock": lambda client: client.multi_lock(["a", "b"], lease=60.0),
    "election": lambda client: client.election("a", lease=60.0),
    "in vain": lambda client: client.lock("held", lease=60.0, timeout=0.001),
    "several in vain": lambda client: client.multi_lock(["a", "held"], lease=60.0, timeout=0.001),
}

PLACES = ("RESUME", "CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD")
"""Instructions at the end of which the interpreter runs handlers."""


def heeds_signals(code: CodeType, known: dict[CodeType, set[int]]) -> set[int]:
    """Return the offsets of the instructions before which a handler may have run.

    What it raises there belongs to the instruction before. Where another block of ``try`` or ``with`` would catch it,
    the place is left out: to raise one instruction later would not be the same.
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
    """A tracing function that raises at the k-th place where a handler could."""

    def __init__(self, at: int, known: dict[CodeType, set[int]]) -> None:
        self._at = at
        self._known = known
        self.met = 0
        self.where = ""

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        if not frame.f_code.co_filename.startswith(HOME):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._step

    def _step(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "opcode" and frame.f_lasti in heeds_signals(frame.f_code, self._known):
            self.met += 1
            if self.met == self._at + 1:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
                raise SystemExit(143)
        return self._step


@contextmanager
def tracing(striking: Striking) -> Iterator[None]:
    before = sys.gettrace()
    sys.settrace(striking)
    try:
        yield
    finally:
        sys.settrace(before)


def struck(block: Callable[[Client], Any], memory: Memory, at: int, known: dict[CodeType, set[int]]) -> Striking:
    striking, client = Striking(at, known), Client(memory)
    try:
        with tracing(striking), block(client):
            pass
    except (SystemExit, AcquireTimeout):
        pass
    finally:
        client.close()
    return striking


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # it was about to be
@pytest.mark.parametrize("name", BLOCKS)
def test_nothing_is_left_by_an_exit_at_any_step(name: str, record_property: Callable[[str, object], None]) -> None:
    memory, known = Memory(f"exit anywhere: {name}"), dict[CodeType, set[int]]()
    left, at = list[str](), 0
    with Client(memory) as looker, looker.lock("held", lease=600.0):
        while (striking := struck(BLOCKS[name], memory, at, known)).where:
            left += [striking.where] * left_behind(looker)
            at += 1
    record_property("sum:exits at a step", at)
    assert at > 100
    assert left == []


def left_behind(looker: Client) -> int:
    """Return how much is on the store but for what the looker holds; take it away."""
    count = 0
    for info in looker.holds():
        others = [holder for holder in info.holders if holder.owner != looker.owner]
        count += len(others) + len(info.waiters)
        for holder in others:
            looker.break_(info.name, holder.token)
    return count
