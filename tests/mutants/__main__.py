"""Try mutants: ``python tests/mutants`` for all of them, with ``--day`` for the sample, or by name; see ``--help``."""

from __future__ import annotations

import argparse
import sys
import time

from mutant_catalogue import PatchError, chosen
from mutant_runs import Verdict, control, run_all


def main() -> int:
    """Run; return 0 if every mutant was killed."""
    parser = argparse.ArgumentParser(prog="python tests/mutants", description="Make mistakes in a copy of the package.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="which mutants; none for all")
    parser.add_argument("--day", action="store_true", help="the sample that runs by day")
    parser.add_argument("--list", action="store_true", help="list them, and end")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once (2)")
    parser.add_argument("--no-control", action="store_true", help="do not run the tests on the code as it is")
    words = parser.parse_args()
    try:
        mutants = chosen(words.names, day=words.day)
        if words.list:
            for mutant in mutants:
                print(f"{mutant.name:<40} {mutant.file}: {mutant.says}")
            return 0
        begin, runs = time.monotonic(), []
        for run in run_all(mutants, words.jobs):
            runs.append(run)
            print(run, flush=True)
        killed = sum(run.verdict is Verdict.KILLED for run in runs)
        print(f"{killed} of {len(runs)} mutants killed in {time.monotonic() - begin:.0f} s")
        if words.no_control:
            return int(killed < len(runs))
        if failed := control(mutants, words.jobs):
            print(f"the tests fail on the code as it is, so they show nothing:\n{failed}")
            return 1
        print("the same tests pass on the code as it is")
    except PatchError as error:
        print(error, file=sys.stderr)
        return 2
    return int(killed < len(runs))


if __name__ == "__main__":
    sys.exit(main())
