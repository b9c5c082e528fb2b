"""A lease granted by a message never counts from after the grant, whatever the clocks' offset and rate."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leasehold._engine.lease import Lease
from leasehold._engine.lease_states import State
from leasehold._engine.watchdog.background import apply_result
from leasehold._model import DRIFT, Granted, LeaseTerms, LockMode, Owner, RenewalResult, Ticket
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold.stores._common.clock_sample import ClockSample, GrantMessage

LEASE = 30.0
seconds = st.floats(0, 20)


def server_us(real: float, offset: float, rate: float) -> int:
    return round((offset + real * rate) * 1e6)


@given(
    sent=st.floats(1_000, 1_010),
    on_its_way=seconds,
    granted=st.floats(985, 1_030),
    message_on_its_way=seconds,
    offset=st.floats(-1e6, 1e9),
    rate=st.floats(1 - DRIFT, 1 + DRIFT),
)
def test_a_lease_granted_by_message_never_counts_from_too_late(
    sent, on_its_way, granted, message_on_its_way, offset, rate
):
    clock_sample = ClockSample(sent, server_us(sent + on_its_way, offset, rate))
    now = max(granted + message_on_its_way, sent)
    since = GrantMessage("ticket", 1, server_us(granted, offset, rate)).since(clock_sample, now, LEASE)
    if since is not None:
        assert since <= granted + 2e-6  # the server counts in microseconds
        assert now - since <= LEASE / 3 + 1e-6


@given(
    sent=st.floats(1_000, 1_010),
    on_its_way=st.floats(0, 1),
    waited=seconds,
    message_on_its_way=seconds,
    rate=st.floats(1 - DRIFT, 1 + DRIFT),
    step=st.floats(0, 1e6),
)
def test_a_clock_step_forward_shifts_a_lease_by_less_than_the_message_delay(
    sent, on_its_way, waited, message_on_its_way, rate, step
):
    """The server's clock steps forward between the anchor and the grant: a large step is noticed."""
    clock_sample, granted = ClockSample(sent, server_us(sent + on_its_way, 0, rate)), sent + on_its_way + waited
    now = granted + message_on_its_way
    since = GrantMessage("ticket", 1, server_us(granted, step, rate)).since(clock_sample, now, LEASE)
    if since is not None:
        assert since <= min(granted + step, now) + 2e-6
    if step > message_on_its_way + on_its_way + 2 * DRIFT * (waited + 1) + (DRIFT * step) + 1e-3:
        assert since is None


def test_a_grant_from_the_future_is_requested_again():
    """The server's clock has stepped forward while the ticket waited."""
    clock_sample = ClockSample(1_000.0, 0)
    assert GrantMessage("ticket", 1, 990_000).since(clock_sample, 1_001.0, LEASE) is not None
    assert GrantMessage("ticket", 1, 2_000_000).since(clock_sample, 1_001.0, LEASE) is None


def test_a_clock_step_back_causes_a_new_request():
    """The grant looks older than it is: too old to be believed, so the claim finds it."""
    clock_sample = ClockSample(1_000.0, 100_000_000)
    assert GrantMessage("ticket", 1, 0).since(clock_sample, 1_001.0, LEASE) is None
    assert GrantMessage("ticket", 1, 0).since(None, 1_001.0, LEASE) is None


def test_a_queue_entry_confirmed_late_does_not_discard_a_grant():
    """The waiter's renewal was carried out before the grant, and its answer comes after the message of the grant."""
    runtime = BlockingRuntime()
    ticket = Ticket("ticket", LeaseTerms(LockMode(), Owner("host", 1, "x"), LEASE))
    lease = Lease(runtime, "x", ticket, LEASE)
    sent = runtime.now()
    assert lease.granted(Granted(1, sent - 0.1, LEASE))  # an anchored grant counts from a little too early
    apply_result(lease, RenewalResult.QUEUED, sent, None, None)
    assert lease.state is State.HELD
    apply_result(lease, RenewalResult.GONE, runtime.now(), None, None)
    assert lease.state is State.LOST
