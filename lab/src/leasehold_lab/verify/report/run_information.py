"""The environment of a run, and the command that repeats it."""

from __future__ import annotations

import os
import platform
import shlex
from datetime import UTC, datetime
from importlib import metadata

from leasehold_lab.verify.deployments import PLANS, known
from leasehold_lab.verify.run import Outcome, Settings


def facts(outcome: Outcome) -> dict[str, str]:
    """Return the environment and settings of a run, as text."""
    settings = outcome.settings
    started = (
        {} if settings.servers is None else {"servers": f"{PLANS[settings.servers].description}, started for this run"}
    )
    return started | {
        "store": str(settings.url),
        "when": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "length": f"{outcome.end - outcome.begin:.1f} s",
        "clients": f"{settings.clients} processes, half blocking and half asyncio, of "
        f"{settings.workers} threads or tasks each",
        "lease": f"{settings.lease:g} s",
        "leasehold": metadata.version("leasehold"),
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "machine": f"{platform.system()} {platform.release()}, {platform.machine()}, {os.cpu_count()} cores",
        "namespace": f"{outcome.namespace} (separate; its remains expire)",
    }


def repeat(outcome: Outcome) -> str:
    """Return the command that repeats the run; a password is shown as ``***``."""
    return command(outcome.settings)


def command(settings: Settings) -> str:
    """Return the command line of these settings."""
    where = [str(settings.url)] if settings.servers is None else ["--servers", settings.servers]
    words = ["leasehold", "verify", *where]
    words += ["--clients", str(settings.clients), "--seconds", f"{settings.seconds:g}"]
    words += ["--lease", f"{settings.lease:g}", "--seed", settings.seed]
    if set(settings.faults) != set(known(settings.servers)):
        words += ["--faults", ",".join(settings.faults) or "none"]
    return shlex.join(words)
