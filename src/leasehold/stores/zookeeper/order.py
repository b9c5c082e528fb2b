"""Who stands in whose way at one lock: Curator's order, and the few rules beyond it. Pure.

Readers and writers
-------------------
A writer waits for all before it, a reader for the writers before it. Two things go beyond what Curator has:

* A node that *stands beside* another repeats its place; it was made in one transaction with a check that the other is
  there. So a writer's own reader, and a reader that passes a waiting writer beside a reader that holds, are before
  everybody who waits, and whoever waits waits for them, too.
* An upgradeable reader becomes the writer by a *gate*: a writer's node in its own place. A reader that came after the
  gate waits for it; one that came before holds or may hold, and the gate waits for it. "Before" is by ``czxid``, the
  transaction in which a node was made, since the gate's place says nothing of when it came.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from leasehold.stores.zookeeper.nodes import Contender, Mark

CreatedAt = Mapping[str, int]
"""The ``czxid`` of children by name, where it matters."""


def in_order(contenders: Iterable[Contender]) -> list[Contender]:
    """Sort contenders as Curator does."""
    return sorted(contenders, key=lambda one: one.sort_key)


def ahead_of(me: Contender, contenders: Iterable[Contender]) -> list[Contender]:
    """Return, in order, those before me at a lock that one holds alone: all of them are in my way."""
    return [one for one in in_order(contenders) if one.sort_key < me.sort_key]


def is_gate(one: Contender) -> bool:
    """Say whether it is the writer that an upgradeable reader becomes."""
    return one.up and one.mark is Mark.WRITER


def births_needed(me: Contender, contenders: Iterable[Contender]) -> list[Contender]:
    """Return those whose birth must be known to say who is in my way."""
    if is_gate(me):
        return [one for one in contenders if one.mark is Mark.READER and one.sort_key >= me.sort_key]
    if me.mark is Mark.READER:
        return [one for one in contenders if is_gate(one) and one.sort_key <= me.sort_key]
    return []


def blockers(me: Contender, alongside: str, contenders: Sequence[Contender], created_at: CreatedAt) -> list[Contender]:
    """Return, in order, those in my way at a read-write lock.

    Args:
        me: a reader or a writer.
        beside: the ticket beside which I stand; empty for none.
        contenders: all, with me among them.
        born: ``czxid`` of me and of those of `to_date`; one that is missing there has gone.

    """
    others = [one for one in in_order(contenders) if one.child != me.child and one.ticket != alongside]
    if is_gate(me):
        return [one for one in others if one.sort_key < me.sort_key or _entered(one, me, others, created_at)]
    if me.mark is Mark.WRITER:
        return [one for one in others if one.sort_key < me.sort_key]
    return [one for one in others if _stops_reader(one, me, created_at)]


def _entered(one: Contender, gate: Contender, others: Sequence[Contender], created_at: CreatedAt) -> bool:
    """Say whether a reader behind the gate may have entered before it; another upgradeable one has not."""
    if (
        one.up
        or one.mark is not Mark.READER
        or created_at.get(one.child, gate_born := created_at[gate.child]) >= gate_born
    ):
        return False
    return not any(other.mark is Mark.WRITER and other.sort_key < one.sort_key for other in others)


def _stops_reader(one: Contender, me: Contender, created_at: CreatedAt) -> bool:
    if one.sort_key > me.sort_key:
        return False
    if is_gate(one):
        return created_at.get(one.child, created_at[me.child]) < created_at[me.child]
    if one.mark is Mark.WRITER:
        return True
    return me.up and one.up and one.sort_key < me.sort_key  # one upgradeable reader at a time


def reader_to_pass_alongside(contenders: Sequence[Contender]) -> Contender | None:
    """Return a reader that holds while a writer waits behind it: beside it a reader may pass the writer.

    None if no writer waits (then there is nobody to pass), or if a writer or a gate is the first.
    """
    ordered = in_order(contenders)
    writer = next((one for one in ordered if one.mark is Mark.WRITER), None)
    if writer is None or is_gate(writer):
        return None
    before = [one for one in ordered if one.sort_key < writer.sort_key and one.mark is Mark.READER]
    return before[-1] if before else None
