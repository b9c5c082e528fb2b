"""What the nodes of Redlock answered, and what that adds up to. Pure."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from leasehold._model import Owner, RenewalResult


@dataclass(frozen=True, slots=True)
class Vote:
    """One node's answer to a proposal.

    Attributes:
        token: the token of its vote for us; 0 if it did not vote for us.
        top: the highest token that it has voted for.
        left: seconds until its vote can be had: another has it, or it abstains.
        holder: the ticket of whoever has its vote; "" if nobody does.
        owner: who that is.
        abstains: it may have forgotten votes, and gives none.

    """

    token: int = 0
    top: int = 0
    left: float = 0.0
    holder: str = ""
    owner: str = ""
    abstains: bool = False

    @classmethod
    def parse(cls, reply: Any) -> Vote:
        """Read the reply of ``scripts/redlock_claim.lua``."""
        if reply[0] == 1:
            return cls(token=int(reply[1]))
        left = int(reply[2]) / 1000
        if reply[0] == 3:
            return cls(top=int(reply[1]), left=left, abstains=True)
        return cls(0, int(reply[1]), left, reply[3].decode(), reply[4].decode("utf-8", "replace"))


class Outcome(enum.Enum):
    """What a round of votes came to."""

    WON = "won"  # most nodes voted for us, with one token
    TAKEN = "taken"  # most nodes voted for another, or the name is kept free
    LOW = "low"  # nobody is in the way, but our token was not the highest
    SPLIT = "split"  # nobody has a majority
    SILENT = "silent"  # too few nodes answered, or were able to vote


def majority(nodes: int) -> int:
    """Return how many of so many nodes must agree: any two such groups share one."""
    return nodes // 2 + 1


def won(votes: Mapping[int, Vote], token: int, nodes: int) -> bool:
    """Say whether a majority voted for ``token``."""
    return sum(vote.token == token for vote in votes.values()) >= majority(nodes)


def settled(votes: Mapping[int, Vote], token: int, nodes: int) -> bool:
    """Say whether those who have not answered can no longer change the outcome."""
    if won(votes, token, nodes):
        return True
    others = Counter(vote.holder for vote in votes.values() if vote.left > 0 and not vote.abstains)
    return max(others.values(), default=0) >= majority(nodes)


def outcome(votes: Mapping[int, Vote], token: int, nodes: int) -> Outcome:
    """Say what the answers come to when no more are waited for."""
    needed = majority(nodes)
    if won(votes, token, nodes):
        return Outcome.WON
    others = Counter(vote.holder for vote in votes.values() if vote.left > 0 and not vote.abstains)
    if max(others.values(), default=0) >= needed:
        return Outcome.TAKEN
    able = [vote for vote in votes.values() if not vote.abstains]
    if len(able) < needed:
        return Outcome.SILENT
    if sum(vote.left <= 0 for vote in able) >= needed:
        return Outcome.LOW
    return Outcome.SPLIT


def free_after(votes: Mapping[int, Vote], nodes: int) -> float:
    """Return seconds after which a majority can be had, if nobody renews or leaves."""
    lefts = sorted(vote.left for vote in votes.values())
    return lefts[min(majority(nodes), len(lefts)) - 1] if lefts else 0.0


def leader(votes: Mapping[int, Vote]) -> Owner | None:
    """Return who has the most votes of others, to tell people."""
    owners = Counter(vote.owner for vote in votes.values() if vote.owner)
    return Owner.parse(owners.most_common(1)[0][0]) if owners else None


HELD, QUEUED, FREE, GONE = 1, 2, 3, 0
"""Answers of one node about one ticket: it has the vote, waits, waits though the vote can be had, is not known."""


def renewal_result(answers: Mapping[int, int], nodes: int) -> RenewalResult | None:
    """Add up what nodes said of one ticket; None if it is not decided.

    A majority decides. A ticket that waits holds nothing, so for it any place on a majority of nodes will do.
    """
    needed, count = majority(nodes), Counter(answers.values())
    if count[HELD] >= needed:
        return RenewalResult.HELD
    waits = count[QUEUED] + count[FREE]
    if waits and waits + count[HELD] >= needed:
        return RenewalResult.QUEUED
    if nodes - count[GONE] < needed:
        return RenewalResult.GONE
    return None


def was_there(answers: Mapping[int, bool], nodes: int) -> bool | None:
    """Say whether a ticket that left had a majority; None if that is not decided."""
    found = sum(answers.values())
    if found >= majority(nodes):
        return True
    return False if nodes - (len(answers) - found) < majority(nodes) else None
