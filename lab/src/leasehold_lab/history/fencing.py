"""Checks that tokens increase from grant to grant, and that a guarded resource never applied an older holder's write.

Tokens fix the order of the grants, so nothing needs to be searched. Walk through the holds in the order of their
tokens. Give each the earliest possible point: not before its request, and not before the previous point. A point
after its answer is impossible. Two holds show it: one was answered before the other, with the smaller token, was sent.

Where a lock is linearizable, claims and tokens have the same order, too. Redlock promises only that tokens increase in
real time. A slow client may receive its grant after a newer one. Its token is then smaller, and it is fenced off.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from leasehold_lab.history.operations import Hold, Mode, Write


def repeated_tokens(holds: Iterable[Hold]) -> Iterator[tuple[Hold, Hold]]:
    """Yield the pairs of grants of one name that carry the same token."""
    first: dict[int, Hold] = {}
    for hold in _granted(holds):
        assert hold.token is not None
        if first.setdefault(hold.token, hold) is not hold:
            yield first[hold.token], hold


def tokens_against_time(holds: Iterable[Hold]) -> Iterator[tuple[Hold, Hold]]:
    """Yield pairs of grants of one name: the one with the smaller token was requested after the other was answered.

    Readers and permits may coexist, and some stores number them by arrival. So only grants that exclude each other
    are compared. Takes O(n log n).
    """
    latest: Hold | None = None  # the one requested last, among those with smaller tokens
    latest_alone: Hold | None = None
    for hold in sorted(_granted(holds), key=_token):
        assert hold.granted is not None
        ahead = latest if hold.mode is Mode.EXCLUSIVE else latest_alone
        if ahead is not None and ahead.asked > hold.granted:
            yield ahead, hold
        if latest is None or hold.asked > latest.asked:
            latest = hold
        if hold.mode is Mode.EXCLUSIVE and (latest_alone is None or hold.asked > latest_alone.asked):
            latest_alone = hold


def tokens_against_claims(holds: Iterable[Hold]) -> Iterator[tuple[Hold, Hold]]:
    """Yield pairs of successive exclusive claims of one name of which the later has the smaller token."""
    highest: Hold | None = None
    for hold in sorted((hold for hold in _granted(holds) if hold.mode is Mode.EXCLUSIVE), key=_answered):
        if highest is not None and _token(hold) < _token(highest):
            yield highest, hold
        else:
            highest = hold


def stale_writes(writes: Iterable[Write]) -> Iterator[tuple[Write, Write]]:
    """Yield pairs of writes that one resource applied although the later has a smaller token.

    An equal token of another owner counts as smaller.
    """
    highest: Write | None = None
    for write in sorted((write for write in writes if write.accepted), key=lambda write: write.order):
        if highest is None or write.token > highest.token:
            highest = write
        elif write.token < highest.token or write.owner != highest.owner:
            yield highest, write


def refused_in_time(holds: Iterable[Hold], writes: Iterable[Write]) -> Iterator[tuple[Hold, Write]]:
    """Yield the writes that a resource refused although the exclusive claim of their writer was valid.

    A newer holder had written before, so two clients held the lock at the same time.
    """
    claims = {(hold.who, hold.token): hold for hold in _granted(holds) if hold.mode is Mode.EXCLUSIVE}
    for write in writes:
        hold = claims.get((write.who, write.token))
        if not write.accepted and hold is not None and write.at < hold.until:
            yield hold, write


def _granted(holds: Iterable[Hold]) -> Iterator[Hold]:
    return (hold for hold in holds if hold.granted is not None and hold.token is not None and not hold.nested)


def _token(hold: Hold) -> int:
    assert hold.token is not None
    return hold.token


def _answered(hold: Hold) -> float:
    assert hold.granted is not None
    return hold.granted
