"""Breaking a lock from a page: what is asked for, and the audit log.

Two records frame each break, so that none happens unrecorded: ``asked`` before anything is sent to the store, and then
``broken``, ``gone`` (that holder was there no more) or ``unknown`` (the store did not answer, and may have done it). A
record is a warning of the logger ``leasehold.ui.audit``, whose attribute ``leasehold`` has the fields. If the logger
is switched off, or a handler raises at the first record, nothing is broken. If it raises at the second, the page shows
that, with the result.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from starlette.requests import Request

from leasehold.cli.output import printable
from leasehold.errors import StoreUnavailable
from leasehold.ui.shown import error_text
from leasehold.ui.source import Source

audit = logging.getLogger("leasehold.ui.audit")
audit.setLevel(logging.WARNING)  # of its own, so that a root logger of level ERROR does not switch it off

LONGEST_REASON = 500
LARGEST_BODY = 16 * 1024
NO_RECORD = "the audit log has no record of this result"
REMEMBERED = 200  # breaks that pages show


class Malformed(ValueError):
    """A request that cannot be carried out, with a message for the person at the page."""


class Unrecorded(Exception):
    """The audit log cannot be written, so nothing was broken."""


@dataclass(frozen=True, slots=True)
class Break:
    """One break, for the audit log."""

    time: float
    name: str
    token: int
    reason: str
    user: str
    address: str
    result: str = "asked"
    error: str = ""


class Breaker:
    """Breaks locks, and remembers the last ones."""

    def __init__(self, source: Source, user: Callable[[Request], str]) -> None:
        self._source = source
        self._user = user
        self.log: deque[Break] = deque(maxlen=REMEMBERED)

    async def carry_out(self, request: Request) -> Break:
        """Break the lock that a request names.

        Raises:
            Malformed: the request is incomplete.
            Unrecorded: the log cannot be written; nothing was broken.
        """
        name, token, reason = read(await body_of(request))
        address = request.client.host if request.client else ""
        asked = Break(time.time(), name, token, reason, printable(self._user(request)), address)
        try:
            record(asked)
        except Exception as error:  # of whatever handler
            raise Unrecorded from error
        done = await self._done(asked)
        try:
            record(done)
        except Exception:  # it is done; that it was asked for is recorded
            done = replace(done, error=f"{done.error}; {NO_RECORD}" if done.error else NO_RECORD)
        self.log.append(done)
        return done

    async def _done(self, asked: Break) -> Break:
        try:
            broken = await self._source.force_release(asked.name, asked.token)
        except StoreUnavailable as error:
            result = "unknown" if error.unknown else "failed"
            return replace(asked, time=time.time(), result=result, error=error_text(error))
        except BaseException:
            with suppress(Exception):  # it must not turn into "nothing was broken"
                record(replace(asked, time=time.time(), result="unknown"))  # cancelled: the client went away meanwhile
            raise
        return replace(asked, time=time.time(), result="broken" if broken else "gone")

    def of(self, name: str) -> list[dict[str, Any]]:
        """Return what pages show of the breaks of a name, the latest first."""
        return [
            {
                "time": one.time,
                "token": str(one.token),
                "reason": printable(one.reason),
                "user": one.user,
                "result": one.result,
            }
            for one in reversed(self.log)
            if one.name == name
        ]


def record(one: Break) -> None:
    """Write a record of the audit log.

    Raises:
        Unrecorded: the logger is switched off, as `logging.config` does with those that it does not name.
    """
    if audit.disabled or not audit.isEnabledFor(logging.WARNING):
        raise Unrecorded
    args = (one.result, one.name, one.token, one.user, one.address, one.reason)
    extra = {"leasehold": {"event": "Break", **asdict(one)}}
    audit.warning("break %s: lock %r, token %d, by %s from %s, reason %r", *args, extra=extra)


async def body_of(request: Request) -> bytes:
    """Read a small body.

    Raises:
        Malformed: it is large.
    """
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST_BODY:
            raise Malformed("the request is too large")
    return body


def read(body: bytes) -> tuple[str, int, str]:
    """Return the name, the token and the reason.

    Raises:
        Malformed: one of them is missing.
    """
    try:
        fields = json.loads(body)
        name, token, reason = fields["name"], str(fields["token"]), " ".join(str(fields["reason"]).split())
    except (ValueError, KeyError, TypeError):
        raise Malformed("send JSON with name, token and reason") from None
    if not isinstance(name, str) or not name:
        raise Malformed("the name is missing")
    if not token.isascii() or not token.isdigit() or len(token) > 20:
        raise Malformed("the token is missing: the number of the hold that is to end")
    if not reason:
        raise Malformed("give a reason, for the audit log")
    return name, int(token), reason[:LONGEST_REASON]


class Strict(logging.Handler):
    """A handler whose record must be written: elsewhere in logging, an error is printed and forgotten."""

    def handleError(self, record: logging.LogRecord) -> None:
        raise Unrecorded from sys.exc_info()[1]


class ToStream(Strict, logging.StreamHandler[TextIO]):
    """Writes each record to standard error."""


class JSONLines(Strict, logging.FileHandler):
    """Appends each record to a file as a line of JSON."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8")
        self.setFormatter(Lines())


class Lines(logging.Formatter):
    """Formats a record of the audit log as JSON."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(getattr(record, "leasehold", {"event": record.getMessage()}))
