"""Which tests measure wall-clock time: those whose source asserts that some real time is shorter than a limit."""

from __future__ import annotations

import ast
import functools
import inspect
import re
from pathlib import Path
from typing import Any

MEASURES = re.compile(
    r"""^\s*assert\b .*
    (?: (?:monotonic|perf_counter|time|now)\(\) \s-\s [\w.\[\]]+   # the time since a moment
      | \btook\b | \bmax\((?:late|took|waited)\)                   # or the name of such a time
      | \buntil\(.*\)                                              # or how long it took until something was true
    ) \s<=?\s (?P<limit>[^,#\n]+)""",
    re.VERBOSE | re.MULTILINE,
)
"""An assertion that real time is shorter than a limit."""

WIDE = 2.0
"""Seconds, at least, of a limit that is wide enough for whatever runs beside a test."""


@functools.cache
def measures(function: Any) -> bool:
    """Return whether the source of a test asserts that a time is shorter than a limit."""
    return MEASURES.search(_source(function)) is not None


@functools.cache
def has_wide_limits(function: Any) -> bool:
    """Return whether each limit of time in a test is `WIDE`. A limit that depends on local variables is not."""
    for match in MEASURES.finditer(_source(function)):
        try:
            if eval(match["limit"], inspect.unwrap(function).__globals__) < WIDE:
                return False
        except (NameError, SyntaxError):
            return False
    return True


def _source(function: Any) -> str:
    """Return the source of a test, if its file measures time. `inspect` would read each test token by token."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return "" if code is None else _functions(code.co_filename).get(code.co_firstlineno, "")


@functools.cache
def _functions(file: str) -> dict[int, str]:
    """Return the functions of a file, by the first line of each or of its decorators; none if no line measures time."""
    path = Path(file)
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if MEASURES.search(text) is None:
        return {}
    lines = text.splitlines(keepends=True)
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    firsts = [min([node.lineno, *(each.lineno for each in node.decorator_list)]) for node in found]
    return {first: "".join(lines[first - 1 : node.end_lineno]) for first, node in zip(firsts, found, strict=True)}
