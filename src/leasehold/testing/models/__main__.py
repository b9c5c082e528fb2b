"""Run simulated histories from the command line: ``python -m leasehold.testing.models --histories 10000``."""

from __future__ import annotations

import argparse
import secrets
import sys
import time

from leasehold.testing.models.party import run


def main() -> int:
    """Run the histories of so many seeds; return 1 if a promise was broken in any."""
    parser = argparse.ArgumentParser(prog="python -m leasehold.testing.models", description=__doc__)
    parser.add_argument("--histories", type=int, default=1000, metavar="N", help="how many seeds (default: 1000)")
    parser.add_argument("--first", type=int, metavar="SEED", help="the first seed (default: by chance)")
    parser.add_argument("--trace", action="store_true", help="print all that happens in each history")
    args = parser.parse_args()
    first: int = secrets.randbits(40) if args.first is None else args.first
    begin, bad, operations = time.process_time(), 0, 0
    for seed in range(first, first + args.histories):
        outcome = run(seed)
        operations += outcome.verdict.checked
        bad += not outcome.ok
        if args.trace:
            print(outcome.trace)
        if args.trace or not outcome.ok:
            print(outcome.report(), flush=True)
    spent = time.process_time() - begin
    rate = args.histories / spent
    print(
        f"{args.histories} histories from seed {first}, {operations} operations, {bad} with a broken promise; "
        f"{spent:.1f} s of one core, {rate:.0f} histories a second"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
