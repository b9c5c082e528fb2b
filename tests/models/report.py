"""What a history shows, for people: the verdict, a picture of it in text, its faults, and how to see it again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from leasehold_lab.history import Hold, Try
from models.faults import Fault
from models.history import Outcome
from models.shrinking import shrink
from models.system import GOOD, Spoilt

WIDTH = 100
"""Characters of a line of the picture."""


def again(outcome: Outcome) -> str:
    """Return the command that plays the history of a seed again."""
    scenario = outcome.scenario
    passed = "--passed " if scenario.passed else ""
    return f"python -m models show {passed}--system {scenario.system} {scenario.seed}"


def report(outcome: Outcome) -> str:
    """Describe an outcome."""
    scenario = outcome.scenario
    what = f"{scenario.system}, seed {scenario.seed}, assumptions {scenario.assumptions.value}"
    size = f"{len(scenario.actors)} clients, {scenario.operations} operations, {len(scenario.strikes)} faults"
    said = outcome.verdict.report() if outcome.error is None else f"{type(outcome.error).__name__}: {outcome.error}"
    return "\n".join([f"{what}: {size}", said, picture(outcome), *(f"    {fault}" for fault in outcome.faults)])


def failure(outcome: Outcome, spoilt: Spoilt = GOOD) -> str:
    """Describe one that failed, made as small as can be, and how to see it as it was."""
    small = shrink(outcome, spoilt)
    return (
        f"{report(small)}\n\nmade small from {outcome.scenario.operations} operations; all of it:\n    {again(outcome)}"
    )


def picture(outcome: Outcome) -> str:
    """Draw who waited (.) and who held (#, and ! when notified of a loss), line by line, and the faults below."""
    rows: defaultdict[str, list[Hold | Try]] = defaultdict(list)
    operations: list[Hold | Try] = [*outcome.history.holds, *outcome.history.tries]
    for one in operations:
        rows[f"{one.who} {one.name}"].append(one)
    ends = [_end(one) for some in rows.values() for one in some]
    last = max([*ends, *(fault.end for fault in outcome.faults), 0.001])
    wide = max([len(row) for row in rows] + [len(_label(fault)) for fault in outcome.faults] + [1])

    def at(time: float) -> int:
        return min(WIDTH - 1, int(time / last * WIDTH))

    lines = [f"{'':{wide}}  0 s{f'{last:.2f} s':>{WIDTH - 3}}"]
    for row in sorted(rows):
        drawn = [" "] * WIDTH
        for one in rows[row]:
            _draw(drawn, one, at)
        lines.append(f"{row:{wide}}  {''.join(drawn).rstrip()}")
    for fault in outcome.faults:
        begin, end = at(fault.begin), at(fault.end)
        lines.append(f"{_label(fault):{wide}}  {' ' * begin}{'~' * (end - begin + 1)}")
    return "\n".join(lines)


def _label(fault: Fault) -> str:
    return f"{fault.who or 'servers'} {fault.kind.name.lower()}"


def _end(one: Hold | Try) -> float:
    if isinstance(one, Try):
        return one.answered
    known = [time for time in (one.asked, one.granted, one.until, one.notified) if time is not None]
    return max(time for time in known if time != float("inf"))


def _draw(drawn: list[str], one: Hold | Try, at: Callable[[float], int]) -> None:
    end = one.answered if isinstance(one, Try) else one.granted if one.granted is not None else _end(one)
    for place in range(at(one.asked), at(end) + 1):
        drawn[place] = "."
    if isinstance(one, Hold) and one.granted is not None:
        for place in range(at(one.granted), at(min(one.until, _end(one))) + 1):
            drawn[place] = "#"
        if one.notified is not None:
            drawn[at(one.notified)] = "!"
