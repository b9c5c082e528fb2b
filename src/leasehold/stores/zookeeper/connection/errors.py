"""The meaning of the errors of ZooKeeper and kazoo, as a table: an answer, not done, unknown, lasting, unsupported."""

from __future__ import annotations

from collections.abc import Mapping

from leasehold.errors import LeaseholdError, StoreUnavailable
from leasehold.stores._common.answers import with_remedy
from leasehold.stores._common.drivers import LASTING, NOT_DONE, UNKNOWN, UNSUPPORTED, Answer, Error


class NoNode(Answer):
    """There is no such node, or its parent is missing."""


class NodeExists(Answer):
    """There is such a node already."""


class BadVersion(Answer):
    """The node has another version than the request expects."""


class NotEmpty(Answer):
    """The node has children."""


ANSWERS: Mapping[str, type[Answer]] = {
    "NoNodeError": NoNode,
    "NodeExistsError": NodeExists,
    "BadVersionError": BadVersion,
    "NotEmptyError": NotEmpty,
}
"""Those errors of kazoo, by name, that are answers, and our class for each."""

TOO_OLD = "it does not know a request that locks need (create2, containers); use ZooKeeper 3.5.3 or later"

MEANINGS: Mapping[str, tuple[Error, str]] = {
    "ConnectionLoss": (UNKNOWN, "the connection was lost"),
    "RequestTimeoutError": (UNKNOWN, "the request took too long"),
    "SystemZookeeperError": (UNKNOWN, "the server failed"),
    "RuntimeInconsistency": (UNKNOWN, "the server failed"),
    "SessionExpiredError": (NOT_DONE, "the session has expired"),
    "ConnectionClosedError": (NOT_DONE, "the connection is closed"),
    "SessionMovedError": (NOT_DONE, "the session has moved to another server"),
    "ThrottledOpError": (NOT_DONE, "the server is overloaded (throttled)"),
    "NoAuthError": (
        LASTING,
        "the rights of a node do not allow it; `leasehold doctor` says which are needed; check user and password, "
        "and that they are those of the nodes' creator",
    ),
    "AuthFailedError": (LASTING, "the credentials were refused; check user and password in the URL"),
    "SessionClosedRequireSaslError": (
        LASTING,
        "it serves only clients with SASL; write ?auth=sasl with user and password in the URL",
    ),
    "InvalidACLError": (
        LASTING,
        "it does not accept our rights (acl); acl=creator needs credentials that it knows",
    ),
    "QuotaExceededError": (LASTING, "the quota is used up; raise it or remove nodes"),
    "EphemeralOnLocalSessionError": (
        LASTING,
        "it has local sessions, which cannot hold locks; set localSessionsUpgradingEnabled=true",
    ),
    "NoChildrenForEphemeralsError": (
        LASTING,
        "a parent node of the lock is ephemeral and can have no children; remove it",
    ),
    "UnimplementedError": (UNSUPPORTED, TOO_OLD),
    "MarshallingError": (UNSUPPORTED, TOO_OLD),
    "BadArgumentsError": (UNSUPPORTED, "it does not take the path of a node"),
}
"""Our error for each of kazoo's, by name, and a message with the remedy. An error that is not listed is unknown."""


def to_error(error: BaseException, where: str) -> Answer | LeaseholdError:
    """Return the error to raise for an error of kazoo. It contains no credential."""
    name = type(error).__name__
    if name in ANSWERS:
        return ANSWERS[name]()
    make, words = MEANINGS.get(name, (UNKNOWN, "an error that is not expected"))
    return make(f"ZooKeeper at {where}: {words} ({name})")


HINTS: Mapping[str, str] = {
    "onnection refused": "nobody listens there; check hosts and ports, and that the servers run",
    "socket connection broken": "it closed the connection: it has no quorum, or it expects TLS (write zookeepers://)",
    "Cannot resolve": "the host name is unknown; check its spelling and the DNS",
    "mismatch": "its certificate is for another host name; use that name, or a certificate with this one",
    "CERTIFICATE_VERIFY_FAILED": "name the authority that signed its certificate with ssl_ca_certs=FILE",
    "WRONG_VERSION_NUMBER": "it does not speak TLS on this port; use its TLS port, or write zookeeper://",
    "record layer failure": "it does not speak TLS on this port; use its TLS port, or write zookeeper://",
    "No such file": "there is no such file; check the paths of the certificates",
    "unexpected eof": "it ended the TLS handshake; it may require a client certificate (ssl_certfile)",
    "time-out": "it does not answer",
    "timed out": "it does not answer",
}
"""The remedy for a connection that cannot be made, by words in a message that the driver logged."""


def no_session(complaint: str, where: str) -> StoreUnavailable:
    """Return the error for a missing session; ``complaint`` is the last message that the driver logged."""
    hint = next(
        (hint for words, hint in HINTS.items() if words in complaint), "check hosts and ports, and that they run"
    )
    text = f"no session with ZooKeeper at {where}: {complaint or 'no server answers'}"
    return StoreUnavailable(with_remedy(text, hint))
