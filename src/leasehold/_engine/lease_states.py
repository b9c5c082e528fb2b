"""The states of a lease, what can happen to it, and the table that joins the two."""

from __future__ import annotations

import enum


class State(enum.Enum):
    """A state of a lease."""

    QUEUED = "queued"
    HELD = "held"
    IN_DOUBT = "in doubt"
    LOST = "lost"
    RELEASED = "released"

    __hash__ = object.__hash__  # by identity: each member is a singleton; `enum.Enum` hashes the name, in Python code


class Transition(enum.Enum):
    """What can happen to a lease."""

    GRANTED = "granted"
    RENEWED = "renewed"
    NO_ANSWER = "renewal without an answer"
    DEADLINE = "deadline passed"
    LOST = "lost by the store"
    RELEASED = "released"

    __hash__ = object.__hash__


TABLE: dict[tuple[State, Transition], State] = {
    (State.QUEUED, Transition.GRANTED): State.HELD,
    (State.QUEUED, Transition.RELEASED): State.RELEASED,
    (State.HELD, Transition.RENEWED): State.HELD,
    (State.HELD, Transition.NO_ANSWER): State.IN_DOUBT,
    (State.HELD, Transition.DEADLINE): State.LOST,
    (State.HELD, Transition.LOST): State.LOST,
    (State.HELD, Transition.RELEASED): State.RELEASED,
    (State.IN_DOUBT, Transition.RENEWED): State.HELD,
    (State.IN_DOUBT, Transition.NO_ANSWER): State.IN_DOUBT,
    (State.IN_DOUBT, Transition.DEADLINE): State.LOST,
    (State.IN_DOUBT, Transition.LOST): State.LOST,
    (State.IN_DOUBT, Transition.RELEASED): State.RELEASED,
}
"""All transitions. A pair that is not listed changes nothing: lost and released are final."""

HOLDING = frozenset({State.HELD, State.IN_DOUBT})
"""The states in which the holder may believe that it holds the name."""

ENDED = frozenset({State.LOST, State.RELEASED})
"""The final states."""
