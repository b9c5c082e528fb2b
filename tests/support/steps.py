"""How tests cancel an operation at each of its steps: after each number of iterations of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import cycle
from typing import Any

TO_THE_END = 1_000_000
"""More iterations of the loop than an operation takes, even if the server answers late."""


async def after_steps(k: int, task: asyncio.Task[Any], pauses: Sequence[float] = (0.0,)) -> None:
    """Let a task run for ``k`` iterations of the loop, then cancel it and await its end.

    Between two iterations this sleeps for the next of ``pauses``, in a cycle.
    """
    for _, pause in zip(range(k), cycle(pauses), strict=False):
        if task.done():
            break
        await asyncio.sleep(pause)
    task.cancel()
    await asyncio.wait((task,))
