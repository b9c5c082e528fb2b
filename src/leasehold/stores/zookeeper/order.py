"""Which contenders block a contender of one lock: Curator's order, and the few rules beyond it. Pure.

Readers and writers
-------------------
A writer waits for all ahead of it, a reader for the writers ahead of it. Two rules go beyond Curator's:

* A node *alongside* another has the same sort key. It was created in one transaction with a check that the other node
  exists. So a writer's own reader is ahead of all waiters, and they wait for it, too. The same holds for a reader that
  overtakes a waiting writer alongside a reader that holds.
* An upgradeable reader becomes the writer by a *gate*: a writer's node with the sort key of the reader. A reader that
  was created after the gate waits for it. A reader that was created before the gate holds or may hold, and the gate
  waits for it. The order is that of ``czxid``, the transaction that created a node, since the gate's sort key does not
  show when it was created.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from leasehold.stores.zookeeper.nodes import Contender, Mark

CreatedAt = Mapping[str, int]
"""The ``czxid`` of children by name, where it is needed."""


def in_order(contenders: Iterable[Contender]) -> list[Contender]:
    """Sort contenders as Curator does."""
    return sorted(contenders, key=lambda one: one.sort_key)


def ahead_of(me: Contender, contenders: Iterable[Contender]) -> list[Contender]:
    """Return, in order, the contenders ahead of ``me`` at an exclusive lock: all of them block it."""
    return [one for one in in_order(contenders) if one.sort_key < me.sort_key]


def is_gate(one: Contender) -> bool:
    """Return whether it is the writer that an upgradeable reader becomes."""
    return one.up and one.mark is Mark.WRITER


def needs_created_at(me: Contender, contenders: Iterable[Contender]) -> list[Contender]:
    """Return the contenders whose ``czxid`` `blockers` needs."""
    if is_gate(me):
        return [one for one in contenders if one.mark is Mark.READER and one.sort_key >= me.sort_key]
    if me.mark is Mark.READER:
        return [one for one in contenders if is_gate(one) and one.sort_key <= me.sort_key]
    return []


def blockers(me: Contender, alongside: str, contenders: Sequence[Contender], created_at: CreatedAt) -> list[Contender]:
    """Return, in order, the contenders that block ``me`` at a read-write lock.

    Args:
        me: a reader or a writer.
        alongside: the ticket alongside which ``me`` acquires; empty for none.
        contenders: all, including ``me``.
        created_at: ``czxid`` of ``me`` and of those of `needs_created_at`; a missing one is gone.
    """
    others = [one for one in in_order(contenders) if one.child != me.child and one.ticket != alongside]
    if is_gate(me):
        return [one for one in others if one.sort_key < me.sort_key or _entered(one, me, others, created_at)]
    if me.mark is Mark.WRITER:
        return [one for one in others if one.sort_key < me.sort_key]
    return [one for one in others if _stops_reader(one, me, created_at)]


def _entered(one: Contender, gate: Contender, others: Sequence[Contender], created_at: CreatedAt) -> bool:
    """Return whether a reader behind the gate may hold since before the gate existed; an upgradeable one cannot."""
    if one.up or one.mark is not Mark.READER:
        return False
    gate_created = created_at[gate.child]
    if created_at.get(one.child, gate_created) >= gate_created:
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
    """Return a reader that holds while a writer waits behind it: alongside it a reader may overtake the writer.

    None if no writer waits (then there is none to overtake), or if a writer or a gate is the first.
    """
    ordered = in_order(contenders)
    writer = next((one for one in ordered if one.mark is Mark.WRITER), None)
    if writer is None or is_gate(writer):
        return None
    before = [one for one in ordered if one.sort_key < writer.sort_key and one.mark is Mark.READER]
    return before[-1] if before else None
