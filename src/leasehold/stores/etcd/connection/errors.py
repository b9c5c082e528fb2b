"""The meaning of etcd's errors: whether the request was carried out, and whether another member or a retry helps.

etcd's errors are texts (``api/v3rpc/rpctypes/error.go``); the gateway sends the text with a gRPC code. The table
matches the text, because one code has many meanings.
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from typing import cast

from leasehold.errors import Outcome, StoreRefused
from leasehold.stores._common.answers import with_remedy
from leasehold.stores.etcd.http.base import Reply
from leasehold.stores.etcd.keys import Json

RIGHTS_PAGE = "docs/backends/etcd.md"


class Meaning(enum.Enum):
    """Whether the request was carried out, and what helps."""

    REFUSED = "refused"  # certainly not carried out; the same request may succeed later
    ELSEWHERE = "elsewhere"  # certainly not carried out; another member, or this one soon, may do it
    LASTING = "lasting"  # certainly not carried out; a retry fails until a setting is changed
    LOGIN = "login"  # certainly not carried out: the token is old; log in again
    LEASE = "lease"  # certainly not carried out: its lease has ended
    EXISTS = "exists"  # the lease was granted before
    COMPACTED = "compacted"  # the history that a watch needs is gone
    UNKNOWN = "unknown"  # it may have been carried out


@dataclass(frozen=True, slots=True)
class Fault:
    """One row of the table."""

    words: str
    meaning: Meaning
    remedy: str = ""


TABLE = (
    Fault("no leader", Meaning.ELSEWHERE, "the cluster elects one, or has no majority: look at its members"),
    Fault("not leader", Meaning.ELSEWHERE, "the cluster elects a leader"),
    Fault("not supported for learner", Meaning.ELSEWHERE, "it is a learner; connect to voting members"),
    Fault("too many requests", Meaning.ELSEWHERE, "it is overloaded: its disk or network is slow"),
    Fault("not capable", Meaning.ELSEWHERE, "it has just started, or the cluster runs mixed versions"),
    Fault(
        "database space exceeded",
        Meaning.REFUSED,
        "its database is full (alarm NOSPACE); release still works; compact, defragment, and `etcdctl alarm disarm`",
    ),
    Fault(
        "corrupt cluster",
        Meaning.LASTING,
        "it has the alarm CORRUPT: its members disagree; restore it, then disarm the alarm",
    ),
    Fault("permission denied", Meaning.LASTING, f"grant its user the role described in {RIGHTS_PAGE}"),
    Fault("authentication failed", Meaning.LASTING, "the user name or password in the URL is wrong"),
    Fault(
        "authentication is not enabled",
        Meaning.LASTING,
        "it knows no users; leave user and password out of the URL, or run `etcdctl auth enable`",
    ),
    Fault("user name is empty", Meaning.LASTING, "put user and password into the URL: etcd://user:password@host"),
    Fault("user name not found", Meaning.LASTING, "the user in the URL does not exist; add it with etcdctl user add"),
    Fault("invalid auth token", Meaning.LOGIN, "its tokens are not valid long enough; look at --auth-token-ttl"),
    Fault("revision of auth store is old", Meaning.LOGIN, "users or roles were changed"),
    Fault("requested lease not found", Meaning.LEASE, "the lease ran out or was revoked"),
    Fault("lease already exists", Meaning.EXISTS),
    Fault("required revision has been compacted", Meaning.COMPACTED),
    Fault("request is too large", Meaning.LASTING, "raise its --max-request-bytes, or store less"),
    Fault("message larger than max", Meaning.LASTING, "raise its --max-request-bytes, or store less"),
    Fault("too many operations in txn", Meaning.LASTING, "raise its --max-txn-ops to 128, the default"),
    Fault("leader changed", Meaning.UNKNOWN, "the cluster changes its leader"),
    Fault("request timed out", Meaning.UNKNOWN, "the cluster is slow or changes its leader: look at its members"),
    Fault("server stopped", Meaning.UNKNOWN, "the member is shutting down"),
)
"""Rows by words of the error. An error that is not listed has the meaning `UNKNOWN`."""

NO_GATEWAY = Fault(
    "its HTTP/JSON gateway does not know this request",
    Meaning.LASTING,
    "it runs with --enable-grpc-gateway=false, is older than 3.4, or is not etcd",
)

NO_SUCH_REQUEST = (404, 405, 501)
"""Statuses for a path that the gateway does not know. Until 3.4 the body is plain text, later JSON."""

GATEWAY_TEXTS = ("Not Found", "Method Not Allowed", "Not Implemented")
"""The gateway's texts in that JSON. etcd's own errors with these statuses have other texts."""

UNLISTED_REMEDY = "its log may say more; `leasehold doctor` checks its settings"

OUTCOMES = {Meaning.LASTING: Outcome.LASTING, Meaning.UNKNOWN: Outcome.UNKNOWN}
"""The public outcome of a meaning; any other is not applied."""


class Refused(Exception):
    """An error response of etcd with its row of the table."""

    def __init__(self, fault: Fault, text: str) -> None:
        super().__init__(text)
        self.fault = fault
        self.text = text
        self.meaning = fault.meaning

    def unavailable(self, where: str) -> StoreRefused:
        """Return the error for users, with a remedy."""
        text = with_remedy(f"etcd at {where} refused: {self.text}", self.fault.remedy or UNLISTED_REMEDY)
        return StoreRefused(text, outcome=OUTCOMES.get(self.meaning, Outcome.NOT_APPLIED))


def read(reply: Reply) -> Json | Refused:
    """Parse a response, or the first message of a stream, into its fields or its error."""
    try:
        parsed = json.loads(reply.body)
    except ValueError:
        if reply.status in NO_SUCH_REQUEST:
            return Refused(NO_GATEWAY, NO_GATEWAY.words)
        return classify(f"HTTP status {reply.status} without a response of etcd")
    if not isinstance(parsed, dict):
        return classify(f"HTTP status {reply.status} with a response that is not etcd's")
    fields = cast(Json, parsed)
    error = fields.get("error")
    if reply.status == 200 and error is None:
        result: Json = fields.get("result", fields)
        return result
    return refusal(error, str(fields.get("message", "")), reply.status)


def refusal(error: object, message: str, status: int) -> Refused:
    """Read an error, which the gateway sends as a text or as an object with a text."""
    if isinstance(error, dict):
        message = str(cast(Json, error).get("message", error))
    elif error:
        message = str(error)
    if status in NO_SUCH_REQUEST and message in GATEWAY_TEXTS:
        return Refused(NO_GATEWAY, NO_GATEWAY.words)
    return classify(message or f"HTTP status {status}")


def classify(text: str) -> Refused:
    """Return the error with its row of the table."""
    fault = next((row for row in TABLE if row.words in text), None)
    return Refused(fault or Fault(text, Meaning.UNKNOWN), text)
