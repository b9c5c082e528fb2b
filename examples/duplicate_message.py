"""Work on a message once though the queue delivers it several times, to several consumers, at the same time.

Four consumers get all ten payments, each in another order. One charges, the others answer with its receipt.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from side_by_side import arguments, client, join, note, notes, start, verdict

CONSUMERS = 4
MESSAGES = 10


def consume(number: int, log: Path, place: argparse.Namespace) -> None:
    """Take all messages, in an order of this consumer's own."""

    def charge(message: int) -> dict[str, Any]:
        time.sleep(0.02)  # the payment service
        note(log, charged=message, consumer=number)
        return {"message": message, "receipt": f"{message}-{random.getrandbits(32):08x}"}

    messages = list(range(MESSAGES))
    random.Random(number).shuffle(messages)
    with client(place) as locks:
        for message in messages:
            receipt = locks.once(f"payment:{message}", ttl=3600).run(charge, message)
            note(log, acknowledged=message, receipt=receipt["receipt"])


def judge(facts: list[dict[str, Any]]) -> list[str]:
    """Say what was broken: charged twice or never, or two receipts for one message."""
    charged = Counter(fact["charged"] for fact in facts if "charged" in fact)
    receipts: defaultdict[int, list[str]] = defaultdict(list)
    for fact in facts:
        if "acknowledged" in fact:
            receipts[fact["acknowledged"]].append(fact["receipt"])
    broken = [f"payment {m} was charged {charged[m]} times" for m in range(MESSAGES) if charged[m] != 1]
    broken += [f"payment {m} has several receipts" for m, all_of in receipts.items() if len(set(all_of)) != 1]
    broken += [f"payment {m} was not acknowledged" for m in range(MESSAGES) if len(receipts[m]) != CONSUMERS]
    consumers = sorted({fact["consumer"] for fact in facts if "charged" in fact})
    deliveries = sum(map(len, receipts.values()))
    print(f"{deliveries} deliveries of {MESSAGES} payments, {charged.total()} charges by consumers {consumers}")
    return broken


def main() -> int:
    """Consume in several processes, and look at the log."""
    place = arguments(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        join(start(CONSUMERS, consume, log, place))
        return verdict(judge(notes(log)), "every payment was charged once")


if __name__ == "__main__":
    sys.exit(main())
