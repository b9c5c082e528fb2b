"""How tests cancel an operation at each of its steps: after each number of turns of the loop, and after the last."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import cycle
from typing import Any

TO_THE_END = 1_000_000
"""More turns of the loop than an operation takes, however late the server answers."""


async def after_steps(k: int, task: asyncio.Task[Any], pauses: Sequence[float] = (0.0,)) -> None:
    """Let a task go on for so many turns of the loop, with these pauses by turns; then cancel it, and await its end."""
    for _, pause in zip(range(k), cycle(pauses), strict=False):
        if task.done():
            break
        await asyncio.sleep(pause)
    task.cancel()
    await asyncio.wait((task,))
