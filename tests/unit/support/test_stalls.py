"""A process that is stopped at random goes on, and the child that stops it ends with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.patience import until
from support.plugins import stalls

STALLED = """
import time
from support.plugins import stalls
child, last, longest, end = stalls.start(0.3), time.monotonic(), 0.0, time.monotonic() + 60
while longest < 0.1 and last < end:
    time.sleep(0.005)
    now = time.monotonic()
    longest, last = max(longest, now - last), now
print(child.pid, longest)
"""


def ended(child: str) -> bool:
    """Return whether a child is gone, or is a zombie, without a command line."""
    try:
        return not Path(f"/proc/{child}/cmdline").read_text()
    except OSError:
        return True


def test_a_process_is_stopped_and_goes_on() -> None:
    top = Path(stalls.__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", STALLED], cwd=top, capture_output=True, text=True, check=True)
    child, longest = done.stdout.split()
    assert float(longest) >= 0.1
    until(lambda: ended(child))
