"""A checker for histories of locks: records what clients saw, and decides whether a correct lock can have answered so.

Checking whether a history of concurrent operations is linearizable is NP-complete in general (Gibbons and Korach,
"Testing shared memories", 1997). For locks it is not, since the holder and the token are known. A sort and one pass
decide it exactly: see `exclusion` and `fencing`. The tests compare their answers with an exhaustive search.

All times of a history are readings of one clock, in seconds: the boot-time clock of one machine, or a simulated one.

Example:
    ```python
    from leasehold_lab.history import History, Hold, check

    history = History(holds=(
        Hold("a", "stock", asked=0.0, granted=0.1, until=0.5, freed=0.6, token=1),
        Hold("b", "stock", asked=0.2, granted=0.4, until=0.9, freed=1.0, token=2),
    ))
    print(check(history).report())     # a and b held at the same time, from 0.4 to 0.5
    ```
"""

from leasehold_lab.history.operations import History, Hold, Mode, Stall, Try, Write, merged, paused_for
from leasehold_lab.history.verdict import Bounds, Promise, Verdict, Violation, check

__all__ = [
    "Bounds",
    "History",
    "Hold",
    "Mode",
    "Promise",
    "Stall",
    "Try",
    "Verdict",
    "Violation",
    "Write",
    "check",
    "merged",
    "paused_for",
]
