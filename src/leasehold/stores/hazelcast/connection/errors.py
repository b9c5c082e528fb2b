"""What each error of the driver means: an answer of the servers, not done, unknown, or not possible with them."""

from __future__ import annotations

from collections.abc import Mapping

from leasehold.errors import LeaseholdError, StoreUnavailable, Unsupported
from leasehold.stores._common.answers import with_remedy
from leasehold.stores._common.drivers import LASTING, UNKNOWN, UNSUPPORTED, Answer, Error


class SessionEnded(Answer):
    """The CP session of the request has ended, and with it all locks that it had."""


class NotOwner(Answer):
    """The lock is not held by the owner that the request names."""


class WaitCancelled(Answer):
    """Another request of the same owner has ended this wait."""


ANSWERS: Mapping[str, type[Answer]] = {
    "SessionExpiredError": SessionEnded,
    "CPGroupDestroyedError": SessionEnded,
    "IllegalMonitorStateError": NotOwner,
    "WaitKeyCancelledError": WaitCancelled,
}
"""Those errors of the driver that are answers, by name."""

MEANINGS: Mapping[str, tuple[Error, str]] = {
    "DistributedObjectDestroyedError": (
        LASTING,
        "this lock was destroyed, and its name cannot be used again in its CP group; choose another name",
    ),
    "AccessControlError": (LASTING, "the credentials do not permit it; grant permissions for locks and CP"),
    "UnsupportedOperationError": (
        UNSUPPORTED,
        "this version of the servers cannot do it; listing needs members of version 5.4, showing one name does not",
    ),
    "HazelcastClientNotActiveError": (UNKNOWN, "the connection was closed"),
    "TargetDisconnectedError": (UNKNOWN, "the connection was lost"),
    "OperationTimeoutError": (UNKNOWN, "the cluster could not do it now"),
}
"""Our error for each of the driver's, by name, and the reason. An error that is not listed is unknown."""

WITH_CP = (
    "use a cluster with CP members (version 5.4 or older with cp-member-count of 3 or more, or Hazelcast Enterprise), "
    "or another store"
)
"""What to do about a cluster without CP."""


def no_cp(where: str, why: str) -> Unsupported:
    """Return the error for a cluster without CP."""
    text = f"Hazelcast at {where} has no CP subsystem ({why}), so no lock there survives a split of the cluster"
    return Unsupported(with_remedy(text, WITH_CP))


def to_error(error: BaseException, where: str) -> Answer | LeaseholdError:
    """Return the error to raise for one of the driver."""
    name, text = type(error).__name__, str(error).splitlines()[:1]
    if name in ANSWERS:
        return ANSWERS[name](*text)
    if isinstance(error, OSError):
        return StoreUnavailable(f"Hazelcast at {where}: the connection was lost", unknown=True)
    make, words = MEANINGS.get(name, (UNKNOWN, ": ".join((name, *text))))
    return make(f"Hazelcast at {where}: {words}")


def not_connected(where: str, cluster: str, error: BaseException) -> StoreUnavailable:
    """Return the error for a cluster that could not be reached. Nothing was sent."""
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    remedy = f"check hosts, ports and credentials, that the members run, and that the cluster is called {cluster!r}"
    return StoreUnavailable(with_remedy(f"no connection with Hazelcast at {where}: {said}", remedy))
