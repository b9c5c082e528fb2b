"""Make what the docs repeat: ``python docs/draw.py`` rewrites it in place.

- The diagram of a hold's states is that of the table in the code.
- The page of performance and its picture have the figures of ``performance-details.md``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from leasehold._engine.lease_states import TABLE, State
from leasehold_lab.bench.report import summary

PAGE = Path(__file__).with_name("architecture.md")
FIGURES = Path(__file__).with_name("performance-details.md")
SHORT = Path(__file__).with_name("performance.md")
BEGIN = "<!-- hold diagram: made by docs/draw.py -->\n"
END = "<!-- end of hold diagram -->\n"


def hold_diagram() -> str:
    """Return the states of a hold as a Mermaid diagram."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {_id(State.QUEUED)}"]
    lines += [f'    state "{state.value}" as {_id(state)}' for state in State]
    lines += [f"    {_id(before)} --> {_id(after)}: {turn.value}" for (before, turn), after in TABLE.items()]
    moving = {before for before, _ in TABLE}
    lines += [f"    {_id(state)} --> [*]" for state in State if state not in moving]
    return "\n".join([*lines, "```", ""])


def drawn(page: str) -> str:
    """Return the page with its diagram as the table has it."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return head + BEGIN + hold_diagram() + END + tail


def _id(state: State) -> str:
    return state.name.lower()


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(drawn(text), encoding="utf-8")
    summary.write(FIGURES, SHORT)
    sys.exit(0)
