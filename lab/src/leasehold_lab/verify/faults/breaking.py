"""Breaks the servers of a run, writes down when, and says for how long which promises did not bind."""

from __future__ import annotations

import random
from collections.abc import Callable

from leasehold._runtimes.clock import boottime
from leasehold_lab.verify.clients.clients import VerifyError
from leasehold_lab.verify.deployments import Site
from leasehold_lab.verify.faults.actions import Spell
from leasehold_lab.verify.faults.bounds import Suspension
from leasehold_lab.verify.faults.client_faults import SERVERS, Done


class Breaker:
    """Makes the faults of one site; without one it makes none.

    Args:
        recovers: seconds in which every client has found back to servers that serve again.

    """

    def __init__(
        self, site: Site | None, lease: float, recovers: float, namespace: str, random_: random.Random
    ) -> None:
        self.kinds = dict(site.faults) if site is not None else {}
        self.suspensions: list[Suspension] = []
        self._site = site
        self._lease = lease
        self._recovers = recovers
        self._namespace = namespace
        self._random = random_

    def make(self, key: str, sleep: Callable[[float], None]) -> Done:
        """Make a fault, and wait until the servers serve again.

        Raises:
            VerifyError: they do not.

        """
        assert self._site is not None
        fault, begin = self.kinds[key], boottime()
        try:
            fault.act(self._site.servers, Spell(self._lease, sleep, self._random, self._namespace))
        except Exception as error:
            raise VerifyError(f"after {key} the servers did not serve again: {error}") from error
        end = boottime()
        served = end + self._recovers + fault.settles * self._lease
        self.suspensions.append(Suspension(key, begin, end, served, end + self._lease if fault.loses else None))
        return Done(key, SERVERS, begin, end)
