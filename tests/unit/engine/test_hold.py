"""The life of a hold: every state with every transition, which callbacks are called, and how often."""

import logging
from asyncio import CancelledError

import pytest

from leasehold._engine.lease import Lease, OnLost, deadline_of
from leasehold._engine.lease_states import HOLDING, TABLE, State, Transition
from leasehold._model import DRIFT, MARGIN, Granted, LeaseTerms, LockMode, Owner, Ticket
from leasehold.errors import LeaseLost
from leasehold.events import Event, InDoubt, Lost, Renewed
from leasehold_lab.runtimes.simulated import SimulatedRuntime
from leasehold_lab.runtimes.virtual import Machine, Scheduler

LEASE = 10.0


class Bench:
    """One lease in virtual time, which the test sets by hand."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(0)
        self.scheduler.time = 100.0
        self.events: list[Event] = []
        runtime = SimulatedRuntime(self.scheduler, Machine("bench"))
        ticket = Ticket("t", LeaseTerms(LockMode(), Owner("host", 1, "client"), LEASE))
        self.lease = Lease(runtime, "name", ticket, LEASE, observer=self.events.append)

    def at(self, when: float) -> None:
        self.scheduler.time = when

    def to(self, state: State) -> None:
        lease = self.lease
        if state is not State.QUEUED:
            assert lease.granted(Granted(7, 100.0, LEASE))
        if state is State.IN_DOUBT:
            lease.mark_in_doubt()
        elif state is State.LOST:
            lease.mark_lost("test")
        elif state is State.RELEASED:
            assert lease.begin_release()
        assert lease.state is state

    def turn(self, turn: Transition) -> None:
        lease = self.lease
        match turn:
            case Transition.GRANTED:
                lease.granted(Granted(8, 101.0, LEASE))
            case Transition.RENEWED:
                lease.renewed(101.0)
            case Transition.NO_ANSWER:
                lease.mark_in_doubt()
            case Transition.DEADLINE:
                self.at(100.0 + LEASE)
                lease.check_deadline()
            case Transition.LOST:
                lease.mark_lost("test")
            case Transition.RELEASED:
                lease.begin_release()


@pytest.mark.parametrize("turn", Transition)
@pytest.mark.parametrize("state", State)
def test_every_turn_of_every_state(state: State, turn: Transition) -> None:
    bench = Bench()
    bench.to(state)
    bench.at(101.0)
    before = bench.lease.deadline
    bench.turn(turn)
    expected = {
        (State.QUEUED, Transition.GRANTED): State.HELD,
        (State.QUEUED, Transition.RELEASED): State.RELEASED,
        **{(one, Transition.RENEWED): State.HELD for one in HOLDING},
        **{(one, Transition.NO_ANSWER): State.IN_DOUBT for one in HOLDING},
        **{(one, Transition.DEADLINE): State.LOST for one in HOLDING},
        **{(one, Transition.LOST): State.LOST for one in HOLDING},
        **{(one, Transition.RELEASED): State.RELEASED for one in HOLDING},
    }.get((state, turn), state)
    assert bench.lease.state is expected
    moves = (state in HOLDING and turn is Transition.RENEWED) or (state is State.QUEUED and turn is Transition.GRANTED)
    assert (bench.lease.deadline > before) == moves, "only a confirmation moves the deadline"
    lost = state in HOLDING and expected is State.LOST
    told = [event for event in bench.events if isinstance(event, Lost)]
    assert len(told) == (1 if lost or state is State.LOST else 0)


def test_lost_and_released_are_final_in_the_table() -> None:
    assert not [key for key in TABLE if key[0] in (State.LOST, State.RELEASED)]


def test_the_deadline_counts_from_before_the_request_less_drift_and_margin() -> None:
    assert deadline_of(100.0, 10.0) == 100.0 + 10.0 * (1 - DRIFT) - MARGIN


def test_a_grant_after_its_deadline_is_refused() -> None:
    bench = Bench()
    bench.at(100.0 + LEASE)
    assert not bench.lease.granted(Granted(7, 100.0, LEASE))
    assert bench.lease.state is State.QUEUED
    assert bench.lease.begin_release(), "so that it can be left"


def test_a_renewal_confirmed_after_the_deadline_does_not_revive() -> None:
    bench = Bench()
    bench.to(State.HELD)
    bench.at(100.0 + LEASE)
    bench.lease.renewed(109.0)
    assert not bench.lease.check_deadline()
    assert bench.lease.state is State.LOST


@pytest.mark.parametrize("state", [State.HELD, State.IN_DOUBT])
def test_a_release_after_the_deadline_is_a_loss_and_notifies(state: State) -> None:
    """Even if no code has read the clock meanwhile, as in a process that was stopped."""
    bench = Bench()
    bench.to(state)
    bench.at(bench.lease.deadline)
    bench.events.clear()
    assert not bench.lease.begin_release()
    assert bench.lease.state is State.LOST
    assert bench.lease.why == "the lease expired"
    assert [type(event) for event in bench.events] == [Lost]


def test_an_older_renewal_does_not_shorten_the_lease() -> None:
    bench = Bench()
    bench.to(State.HELD)
    bench.at(105.0)
    bench.lease.renewed(104.0)
    bench.lease.renewed(102.0)
    assert bench.lease.deadline == deadline_of(104.0, LEASE)


def test_a_deadline_that_was_moved_at_the_last_moment_is_no_loss() -> None:
    """The look at the clock and the loss are two steps: a renewal may come between them."""
    bench = Bench()
    bench.to(State.HELD)
    bench.at(105.0)
    bench.lease._lose(Transition.DEADLINE, "test")
    assert bench.lease.state is State.HELD


def test_doubt_is_told_once_and_so_is_its_end() -> None:
    bench = Bench()
    bench.to(State.HELD)
    for _ in range(3):
        bench.lease.mark_in_doubt()
    assert bench.lease.doubts == 3
    bench.lease.renewed(101.0)
    bench.lease.renewed(102.0)
    assert [type(event) for event in bench.events] == [InDoubt, Renewed]
    assert bench.lease.doubts == 0


def test_callbacks_are_called_once_with_the_error() -> None:
    bench, told = Bench(), []
    bench.to(State.HELD)
    bench.lease.on_lost(told.append)
    bench.lease.mark_lost("it was broken")
    bench.lease.mark_lost("again")
    bench.at(100.0 + LEASE)
    bench.lease.check_deadline()
    (error,) = told
    assert isinstance(error, LeaseLost)
    assert "it was broken" in str(error)
    assert (error.name, error.token) == ("name", 7)


def test_a_callback_that_comes_after_the_loss_is_called_at_once() -> None:
    bench, told = Bench(), []
    bench.to(State.LOST)
    bench.lease.on_lost(told.append)
    assert len(told) == 1


@pytest.mark.parametrize("first", [True, False])
def test_of_two_threads_that_bring_the_first_callbacks_at_the_same_time_both_are_called(
    first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, told = Bench(), []
    bench.to(State.HELD)

    class Meeting(dict[Lease, list[OnLost]]):
        """The other thread brings its callback before this step of the one, or after it."""

        met = False

        def setdefault(self, key: Lease, made: list[OnLost], /) -> list[OnLost]:  # type: ignore[override]
            steps = [lambda: bench.lease.on_lost(told.append), lambda: super(Meeting, self).setdefault(key, made)]
            if self.met:
                return super().setdefault(key, made)
            self.met = True
            results = [step() for step in (steps if first else reversed(steps))]
            return results[1 if first else 0]

    monkeypatch.setattr("leasehold._engine.lease._made", Meeting())
    bench.lease.on_lost(told.append)
    bench.lease.mark_lost("test")
    assert len(told) == 2


def test_nobody_is_called_when_it_is_released() -> None:
    bench, told = Bench(), []
    bench.to(State.HELD)
    bench.lease.on_lost(told.append)
    bench.lease.begin_release()
    bench.at(200.0)
    bench.lease.check_deadline()
    bench.lease.mark_lost("late")
    assert told == []
    assert bench.events == []


@pytest.mark.parametrize("error", [ValueError("mine"), SystemExit(3), CancelledError(), GeneratorExit()], ids=repr)
def test_a_callback_that_raises_prevents_no_other_callback(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    bench, told = Bench(), []
    bench.to(State.HELD)

    def fails(_: LeaseLost) -> None:
        raise error

    bench.lease.on_lost(fails)
    bench.lease.on_lost(told.append)
    with caplog.at_level(logging.ERROR, "leasehold"):
        bench.lease.mark_lost("test")
    assert len(told) == 1
    assert "callback of lock 'name' failed" in caplog.text


def test_a_fixed_lease_that_was_granted_for_less_is_renewed_up_to_its_length_and_no_further() -> None:
    bench = Bench()
    lease = bench.lease
    lease.renew = False
    assert lease.granted(Granted(7, 100.0, 4.0))
    assert (lease.deadline, lease.renews) == (deadline_of(100.0, 4.0), True)
    bench.at(103.0)
    lease.renewed(103.0)
    assert (lease.deadline, lease.renews) == (deadline_of(103.0, 4.0), True)
    bench.at(106.5)
    lease.renewed(106.5)
    assert (lease.deadline, lease.renews) == (deadline_of(100.0, LEASE), False)
    lease.renewed(107.0, restart=True)
    assert (lease.deadline, lease.renews) == (deadline_of(107.0, 4.0), True)


def test_a_fixed_lease_that_was_granted_whole_is_not_renewed() -> None:
    bench = Bench()
    bench.lease.renew = False
    assert bench.lease.granted(Granted(7, 100.0, LEASE))
    assert not bench.lease.renews
