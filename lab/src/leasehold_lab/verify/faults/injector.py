"""Injects faults into the servers of a run, and records for how long which promises were suspended."""

from __future__ import annotations

import random
from collections.abc import Callable

from leasehold._runtimes.clock import boottime
from leasehold_lab.verify.clients.process import VerifyError
from leasehold_lab.verify.deployments import Deployment
from leasehold_lab.verify.faults.actions import FaultContext
from leasehold_lab.verify.faults.bounds import Suspension
from leasehold_lab.verify.faults.client_faults import SERVERS, InjectedFault


class FaultInjector:
    """Injects faults into one deployment; without a deployment it has none.

    Args:
        recovers: seconds within which every client reconnects to servers that serve again.

    """

    def __init__(
        self, deployment: Deployment | None, lease: float, recovers: float, namespace: str, random_: random.Random
    ) -> None:
        self.kinds = dict(deployment.faults) if deployment is not None else {}
        self.suspensions: list[Suspension] = []
        self._site = deployment
        self._lease = lease
        self._recovers = recovers
        self._namespace = namespace
        self._random = random_

    def make(self, key: str, sleep: Callable[[float], None]) -> InjectedFault:
        """Inject a fault, and wait until the servers serve again.

        Raises:
            VerifyError: they do not serve again.

        """
        assert self._site is not None
        fault, begin = self.kinds[key], boottime()
        try:
            fault.action(self._site.servers, FaultContext(self._lease, sleep, self._random, self._namespace))
        except Exception as error:
            raise VerifyError(f"after {key} the servers did not serve again: {error}") from error
        end = boottime()
        served = end + self._recovers + fault.settles * self._lease
        self.suspensions.append(Suspension(key, begin, end, served, end + self._lease if fault.loses else None))
        return InjectedFault(key, SERVERS, begin, end)
