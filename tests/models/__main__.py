"""Simulated histories from the command line.

``python -m models run --histories 50000 --jobs 2`` plays many and says what they had in them;
``show --system redis 4711`` plays one again, with all that happened in it; ``replay`` plays some twice, each time in
another process and if asked in another Python, and compares; ``wakeups`` hands locks over while messages are lost;
``power`` measures how soon histories of several lengths find locks that are broken on purpose.
"""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import sys
from pathlib import Path

from models import power, running, wakeups
from models.history import run
from models.report import failure, report
from models.systems import SYSTEMS


def main() -> int:
    """Do what the arguments say; return 1 if a promise was broken or something differed."""
    parser = argparse.ArgumentParser(prog="python -m models", description=__doc__)
    commands = parser.add_subparsers(required=True)

    many = commands.add_parser("run", help="play many histories")
    many.set_defaults(do=_run)
    many.add_argument("--histories", type=int, default=1000, metavar="N", help="how many (default: 1000)")
    _seeds(many)
    many.add_argument("--system", choices=list(SYSTEMS), help="of this system alone (default: of all, by their shares)")
    _passed(many)

    one = commands.add_parser("show", help="play one history again, with all that happens in it")
    one.set_defaults(do=_show)
    one.add_argument("seed", type=int)
    one.add_argument("--system", choices=list(SYSTEMS), default="redis")
    _passed(one)
    one.add_argument("--no-trace", action="store_true", help="show the picture and the faults alone")

    twice = commands.add_parser("replay", help="play histories twice, and compare all that happened")
    twice.set_defaults(do=_replay)
    twice.add_argument("--histories", type=int, default=1000, metavar="N", help="how many seeds (default: 1000)")
    twice.add_argument("--python", default=sys.executable, help="for the second time (default: this one)")
    _seeds(twice)

    digests = commands.add_parser("digests", help="print for each seed a digest of all that happened")
    digests.set_defaults(do=_digests)
    digests.add_argument("--histories", type=int, default=1000, metavar="N")
    _seeds(digests)

    waking = commands.add_parser("wakeups", help="hand locks over while messages are lost")
    waking.set_defaults(do=_wakeups)
    waking.add_argument("--handovers", type=int, default=20_000, metavar="N", help="how many (default: 20000)")
    _seeds(waking)

    finding = commands.add_parser("power", help="measure how soon histories find locks that are broken on purpose")
    finding.set_defaults(do=_power)
    finding.add_argument("--seconds", type=float, default=5.0, help="of a processor, for each lock and length (5)")
    finding.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (default: 1)")

    args = parser.parse_args()
    code: int = args.do(args)
    return code


def _seeds(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=secrets.randbits(40), help="the first seed (default: by chance)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (default: 1)")


def _passed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--passed",
        action="store_const",
        const=True,
        help="let holds be passed between tasks and clients be closed under use in all (default: by chance)",
    )


def _run(args: argparse.Namespace) -> int:
    shares = running.SHARES if args.system is None else {args.system: 1}
    print(f"histories from seed {args.seed}", flush=True)
    tally = running.run_many(args.seed, args.histories, args.jobs, shares, passed=args.passed)
    for text in tally.failures:
        print(text, end="\n\n")
    print(tally.summary())
    return 1 if tally.failed else 0


def _show(args: argparse.Namespace) -> int:
    outcome = run(args.seed, args.system, passed=args.passed)
    if not args.no_trace:
        print(outcome.trace())
    print(report(outcome))
    if not outcome.ok:
        print(f"\nmade small:\n{failure(outcome)}")
    return 0 if outcome.ok else 1


def _replay(args: argparse.Namespace) -> int:
    """Compare with another process, in which strings have other hashes, and with another Python if there is one."""
    mine = _digested(args)
    command = [args.python, "-m", "models", "digests"]
    command += ["--histories", str(args.histories), "--seed", str(args.seed), "--jobs", str(args.jobs)]
    here = str(Path(__file__).parents[1])  # where the other process finds this package
    paths = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": str(1 + args.seed % 4_000_000_000)}
    theirs = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.splitlines()
    differing = sorted({line.rpartition(" ")[0] for line in set(mine) ^ set(theirs)})
    print(f"counted simulation: replayed={len(mine)} differing={len(differing)} {' '.join(differing[:10])}".rstrip())
    return 1 if differing else 0


def _digested(args: argparse.Namespace) -> list[str]:
    pieces = list(running.plan(args.seed, args.histories))
    found = running.in_processes(running.digests, pieces, args.jobs)
    return sorted(f"{system} {seed} {digest}" for part in found for system, seed, digest in part)


def _digests(args: argparse.Namespace) -> int:
    print("\n".join(_digested(args)))
    return 0


def _wakeups(args: argparse.Namespace) -> int:
    print(f"hand-overs from seed {args.seed}", flush=True)
    failed = False
    for share, deaf in ((9, 0.5), (1, 1.0)):
        found = wakeups.hand_over_many(args.seed, args.handovers * share // 10, deaf, args.jobs)
        late = found.longest > wakeups.BOUND
        failed = failed or late or bool(found.stuck)
        print(
            f"counted simulation: handovers={found.handed} lost={deaf:.0%} stuck={found.stuck} "
            f"longest={found.longest:.3f} s of {wakeups.BOUND:.3f} s"
        )
    return 1 if failed else 0


def _power(args: argparse.Namespace) -> int:
    for found in power.measure(args.seconds, args.jobs):
        print(found, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
