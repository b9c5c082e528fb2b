"""What etcd's errors mean: whether the request was carried out, and whether another member, or asking again, helps.

etcd spells its errors as text (``api/v3rpc/rpctypes/error.go``); the gateway sends the text with a gRPC code. The table
goes by the text, for one code has many meanings.
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from typing import Any, cast

from leasehold.errors import Outcome, StoreRefused
from leasehold.stores.etcd.http.base import Reply

RIGHTS_PAGE = "docs/backends/etcd.md"


class Meaning(enum.Enum):
    """What became of the request, and what helps."""

    REFUSED = "refused"  # certainly not carried out; the same request may succeed later
    ELSEWHERE = "elsewhere"  # certainly not carried out by this member now; another, or this one soon, may do it
    LASTING = "lasting"  # certainly not carried out, and never will be until somebody changes something
    LOGIN = "login"  # certainly not carried out: the token is old, and another is to be had with the password
    LEASE = "lease"  # certainly not carried out: its lease has ended
    EXISTS = "exists"  # the lease was granted before
    COMPACTED = "compacted"  # history is gone that a watch would need
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
"""By words of the error. Whatever is not listed is unknown."""

NO_GATEWAY = Fault(
    "its HTTP/JSON gateway does not know this request",
    Meaning.LASTING,
    "it runs with --enable-grpc-gateway=false, is older than 3.4, or is not etcd",
)

NO_SUCH_REQUEST = (404, 405, 501)
"""Statuses of a path that the gateway does not know. Until 3.4 it says so in plain text, then in its own form."""

ITS_WORDS = ("Not Found", "Method Not Allowed", "Not Implemented")
"""That form has these words alone; what etcd itself does not find it says in words of its own."""

UNLISTED = "its log may say more; `leasehold doctor` looks at its settings"


Barred = StoreRefused
"""etcd refuses for good: a right or a setting is missing. A repetition does not help, so waiters get the error."""


OUTCOMES = {Meaning.LASTING: Outcome.LASTING, Meaning.UNKNOWN: Outcome.UNKNOWN}
"""What a user is told of a meaning; any other is not applied."""


class Refused(Exception):
    """An error answer of etcd with its place in the table."""

    def __init__(self, fault: Fault, text: str, status: int) -> None:
        super().__init__(text)
        self.fault = fault
        self.text = text
        self.status = status

    @property
    def meaning(self) -> Meaning:
        """What became of the request."""
        return self.fault.meaning

    def unavailable(self, where: str) -> StoreRefused:
        """Say it to people."""
        text = f"etcd at {where} refused: {self.text}; {self.fault.remedy or UNLISTED}"
        return StoreRefused(text, outcome=OUTCOMES.get(self.meaning, Outcome.NOT_APPLIED))


def read(reply: Reply) -> dict[str, Any] | Refused:
    """Return what an answer says, or the error that it is. A stream's first message counts for the whole."""
    try:
        said = json.loads(reply.body)
    except ValueError:
        if reply.status in NO_SUCH_REQUEST:
            return Refused(NO_GATEWAY, NO_GATEWAY.words, reply.status)
        return classed(f"HTTP status {reply.status} without an answer of etcd", reply.status)
    if not isinstance(said, dict):
        return classed(f"HTTP status {reply.status} with an answer that is not etcd's", reply.status)
    fields = cast(dict[str, Any], said)
    error = fields.get("error")
    if reply.status == 200 and error is None:
        result: dict[str, Any] = fields.get("result", fields)
        return result
    return refusal(error, str(fields.get("message", "")), reply.status)


def refusal(error: object, message: str, status: int) -> Refused:
    """Read an error in whichever form the gateway wraps it: a text, or an object with one."""
    if isinstance(error, dict):
        message = str(cast(dict[str, Any], error).get("message", error))
    elif error:
        message = str(error)
    if status in NO_SUCH_REQUEST and message in ITS_WORDS:
        return Refused(NO_GATEWAY, NO_GATEWAY.words, status)
    return classed(message or f"HTTP status {status}", status)


def classed(text: str, status: int) -> Refused:
    """Find the row of the table."""
    fault = next((row for row in TABLE if row.words in text), None)
    return Refused(fault or Fault(text, Meaning.UNKNOWN), text, status)
