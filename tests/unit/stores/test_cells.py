"""The one rule by which a cell changes: versions go up by one, a stale fence and a wrong version change nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold._model import CELL_LIMIT, Cell, Change
from leasehold.stores._common.cells import EMPTY, apply_change

changes = st.lists(
    st.builds(
        Change,
        value=st.one_of(st.none(), st.binary(max_size=4)),
        if_version=st.one_of(st.none(), st.integers(0, 5)),
        fence=st.one_of(st.none(), st.integers(0, 5)),
    ),
    max_size=30,
)


@given(changes)
def test_a_stale_change_changes_nothing(changes: list[Change]) -> None:
    cell, highest = EMPTY, 0
    for change in changes:
        after = apply_change(cell, change)
        refused = (
            change.value is None
            or (change.if_version is not None and change.if_version != cell.version)
            or (change.fence is not None and change.fence < highest)
        )
        assert after.changed is not refused
        if after.changed:
            highest = max(highest, change.fence or 0)
            assert (after.value, after.version, after.fence) == (change.value, cell.version + 1, highest)
        else:
            assert (after.value, after.version, after.fence) == (cell.value, cell.version, cell.fence)
        cell = after


def test_a_write_of_an_older_holder_is_refused_after_one_of_a_newer() -> None:
    cell = apply_change(EMPTY, Change(b"new", fence=8))
    assert not apply_change(cell, Change(b"old", fence=7)).changed
    assert apply_change(cell, Change(b"again", fence=8)).changed, "the same holder may write twice"


def test_version_zero_is_a_cell_that_does_not_exist() -> None:
    assert apply_change(EMPTY, Change(b"first", if_version=0)).changed
    assert not apply_change(Cell(b"there", 1), Change(b"first", if_version=0)).changed


def test_a_value_has_a_limit() -> None:
    assert apply_change(EMPTY, Change(b"x" * CELL_LIMIT)).changed
    with pytest.raises(ValueError, match="at most 65536 bytes"):
        apply_change(EMPTY, Change(b"x" * (CELL_LIMIT + 1)))
