"""Names of locks as labels: by patterns or by their static prefix, and never more than the limit."""

from __future__ import annotations

import pytest

from leasehold.observability.names import LONGEST, OTHER, REMEMBERED, Labels, static_prefix


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("order:42", "order:*"),
        ("order:42:items", "order:*"),
        ("election/leader", "election/*"),
        ("job7", "job*"),
        ("nightly", "nightly"),
        ("4711", "*"),
        (":a", ":*"),
    ],
)
def test_the_static_prefix_ends_before_what_varies(name: str, label: str) -> None:
    assert static_prefix(name) == label


def test_the_first_pattern_that_fits_is_the_label_and_all_else_is_other() -> None:
    labels = Labels(["order:*:items", "order:*"])
    assert [labels(name) for name in ("order:1:items", "order:1", "stock:1")] == ["order:*:items", "order:*", OTHER]


def test_there_are_never_more_labels_than_the_limit() -> None:
    labels = Labels(lambda name: name, limit=3)
    made = [labels(f"n{number}") for number in range(REMEMBERED + 10)]
    assert {*made} == {"n0", "n1", "n2", OTHER}
    assert labels("n0") == "n0"
    assert len(labels._remembered) <= REMEMBERED


def test_a_label_is_short_and_a_function_that_fails_gives_other() -> None:
    assert len(Labels(lambda name: name)("x" * 500)) == LONGEST
    assert Labels(lambda name: {}[name])("a") == OTHER  # type: ignore[no-any-return]


def test_mistakes_name_their_remedy() -> None:
    with pytest.raises(TypeError, match=r"write \['order:\*'\]"):
        Labels("order:*")
    with pytest.raises(ValueError, match="limit must be at least 1"):
        Labels(limit=0)
    with pytest.raises(ValueError, match="raise limit"):
        Labels(["a", "b"], limit=1)
