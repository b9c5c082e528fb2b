"""The timer queue against a plain dict, by random changes."""

from hypothesis import given, settings
from hypothesis import strategies as st

from leasehold._engine.watchdog.timers import TimerQueue

changes = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 9), st.integers(0, 20)),
        st.tuples(st.just("remove"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("due"), st.just(0), st.integers(0, 20)),
    ),
    max_size=200,
)


@settings(max_examples=300, deadline=None)
@given(changes)
def test_it_is_a_dict_with_an_earliest(changes: list[tuple[str, int, int]]) -> None:
    timers: TimerQueue[int] = TimerQueue()
    model: dict[int, float] = {}
    for what, item, when in changes:
        if what == "put":
            timers.put(item, when)
            model[item] = when
        elif what == "remove":
            timers.remove(item)
            model.pop(item, None)
        else:
            due = timers.due(when)
            assert len(due) == len(set(due))
            assert set(due) == {one for one, at in model.items() if at <= when}
            assert [model[one] for one in due] == sorted(model[one] for one in due)
            for one in due:
                del model[one]
        assert timers.next() == min(model.values(), default=None)
        assert len(timers) == len(model)
        assert set(timers) == set(model)
        assert all(one in timers for one in model)


def test_moving_an_item_for_ever_does_not_fill_the_heap() -> None:
    timers: TimerQueue[str] = TimerQueue()
    for when in range(10_000):
        timers.put("a", when)
        timers.put("b", -when)
    assert len(timers._heap) < 200
