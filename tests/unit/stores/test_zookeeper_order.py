"""Names and order of contenders, as in Curator, and which one blocks which. Pure."""

from __future__ import annotations

import itertools
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold._model import ticket_id
from leasehold.stores.zookeeper.nodes import (
    Contender,
    Mark,
    Paths,
    decode_part,
    encode_part,
    parse,
    path_prefixes,
    stem,
)
from leasehold.stores.zookeeper.order import (
    ahead_of,
    blockers,
    in_order,
    needs_created_at,
    reader_to_pass_alongside,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)


def contender(mark: Mark, place: int, *, up: bool = False) -> Contender:
    return parse(f"{stem(ticket_id(os.urandom(16)), mark, up=up)}{place:010d}")


def test_names_are_those_of_curator() -> None:
    ticket = ticket_id(bytes(range(16)))
    assert stem(ticket, Mark.LOCK) == "_c_00010203-0405-0607-0809-0a0b0c0d0e0f-lock-"
    found = parse("_c_00010203-0405-0607-0809-0a0b0c0d0e0f-lock-0000000017")
    assert (found.mark, found.sort_key, found.ticket, found.up) == (Mark.LOCK, "0000000017", ticket, False)
    found = parse("_c_00010203-0405-0607-0809-0a0b0c0d0e0f-up-__WRIT__0000000003")
    assert (found.mark, found.sort_key, found.ticket, found.up) == (Mark.WRITER, "0000000003", ticket, True)


@pytest.mark.parametrize(
    ("child", "mark", "place"),
    [
        ("lock-0000000017", Mark.LOCK, "0000000017"),
        ("x-lock-lock-0000000002", Mark.LOCK, "0000000002"),
        ("something", None, "something"),
        ("0f1e__lock__0000000003", None, "0f1e__lock__0000000003"),  # kazoo's: Curator takes it whole, and so do we
        ("_c_00010203-0405-0607-0809-0a0b0c0d0e0f-lease-0000000001", Mark.LEASE, "0000000001"),
    ],
)
def test_foreign_names_have_the_sort_key_of_curator(child: str, mark: Mark | None, place: str) -> None:
    assert (parse(child).mark, parse(child).sort_key) == (mark, place)


@given(TEXT, TEXT)
def test_any_text_is_encoded_as_one_part_of_a_path_injectively(one: str, other: str) -> None:
    part = encode_part(one)
    assert decode_part(part) == one
    assert (part == encode_part(other)) is (one == other)
    assert "/" not in part
    assert "~" not in part
    assert part not in (".", "..")
    assert part.isascii()
    assert part.isprintable()


@given(TEXT, TEXT)
def test_locks_cells_and_clock_of_namespaces_never_collide(one: str, other: str) -> None:
    spaces = [
        path for name in {one, other} for path in (Paths("", name).space, Paths("", name).cells, Paths("", name).clock)
    ]
    assert len(spaces) == len(set(spaces))
    assert all(not path.startswith("/zookeeper/") and path != "/zookeeper" for path in spaces)


def test_all_prefixes_of_a_path() -> None:
    assert path_prefixes("/a/b/c") == ["/a", "/a/b", "/a/b/c"]


def test_a_contender_waits_for_all_ahead_of_it() -> None:
    line = [contender(Mark.LOCK, place) for place in (3, 1, 2)]
    assert [one.sort_key[-1] for one in in_order(line)] == ["1", "2", "3"]
    assert ahead_of(line[1], line) == []
    assert ahead_of(line[0], line) == [line[1], line[2]]


# --- readers and writers -------------------------------------------------------------------------------------------


def holding(contenders: list[Contender], created_at: dict[str, int], alongside: dict[str, str]) -> set[str]:
    return {one.child for one in contenders if not blockers(one, alongside.get(one.child, ""), contenders, created_at)}


def test_readers_wait_for_writers_ahead_and_writers_for_all() -> None:
    r1, r2, w3, r4, w5 = (
        contender(mark, place)
        for place, mark in enumerate((Mark.READER, Mark.READER, Mark.WRITER, Mark.READER, Mark.WRITER), 1)
    )
    line = [r1, r2, w3, r4, w5]
    assert blockers(r2, "", line, {}) == []
    assert blockers(w3, "", line, {}) == [r1, r2]
    assert blockers(r4, "", line, {}) == [w3]
    assert blockers(w5, "", line, {}) == [r1, r2, w3, r4]


def test_a_writers_own_reader_holds_alongside_it_and_blocks_the_next_writer() -> None:
    writer, waiting = contender(Mark.WRITER, 1), contender(Mark.WRITER, 2)
    own = contender(Mark.READER, 1)
    line = [waiting, writer, own]
    assert blockers(writer, "", line, {}) == []
    assert blockers(own, writer.ticket, line, {}) == []
    assert blockers(own, "", line, {}) == [writer], "a stranger there would wait"
    assert blockers(waiting, "", [waiting, own], {}) == [own]


def test_a_reader_overtakes_a_waiting_writer_only_alongside_a_reader_that_holds() -> None:
    reader, writer = contender(Mark.READER, 1), contender(Mark.WRITER, 2)
    assert reader_to_pass_alongside([writer, reader]) == reader
    assert reader_to_pass_alongside([reader]) is None
    assert reader_to_pass_alongside([writer]) is None
    gate = contender(Mark.WRITER, 1, up=True)
    assert reader_to_pass_alongside([reader, gate, writer]) is None


def test_one_upgradeable_reader_at_a_time() -> None:
    first, plain, second = (
        contender(Mark.READER, 1, up=True),
        contender(Mark.READER, 2),
        contender(Mark.READER, 3, up=True),
    )
    line = [first, plain, second]
    assert blockers(plain, "", line, {}) == []
    assert blockers(second, "", line, {}) == [first]


def test_a_gate_waits_for_readers_that_came_before_it_and_later_ones_wait_for_the_gate() -> None:
    reads, before, after = contender(Mark.READER, 1, up=True), contender(Mark.READER, 2), contender(Mark.READER, 3)
    gate = contender(Mark.WRITER, 1, up=True)
    line = [reads, before, after, gate]
    created_at = {reads.child: 10, before.child: 11, gate.child: 12, after.child: 13}
    assert needs_created_at(gate, line) == [reads, before, after]
    assert needs_created_at(after, line) == [gate]
    assert blockers(gate, reads.ticket, line, created_at) == [before]
    assert blockers(before, "", line, created_at) == []
    assert blockers(after, "", line, created_at) == [gate]
    assert blockers(reads, "", line, created_at) == []
    assert holding(line, created_at, {gate.child: reads.ticket}) == {reads.child, before.child}


def test_conflicting_contenders_never_hold_together() -> None:
    """All small lines: births in any order that the protocol allows, gates and readers beside included."""
    kinds = [(Mark.READER, False), (Mark.WRITER, False), (Mark.READER, True)]
    for marks in itertools.product(kinds, repeat=4):
        line = [contender(mark, place, up=up) for place, (mark, up) in enumerate(marks, 1)]
        created_at = {one.child: number for number, one in enumerate(line)}
        alongside: dict[str, str] = {}
        inside = holding(line, created_at, alongside)
        first_up = next((one for one in line if one.up and one.child in inside), None)
        if first_up is not None:
            gate = contender(Mark.WRITER, int(first_up.sort_key), up=True)
            line, created_at[gate.child], alongside[gate.child] = [*line, gate], len(line), first_up.ticket
            later = contender(Mark.READER, 9)
            line, created_at[later.child] = [*line, later], len(line)
            _check(line, holding(line, created_at, alongside), alongside)
            line = [one for one in line if one.up or one.mark is Mark.WRITER]  # the plain readers left
        _check(line, holding(line, created_at, alongside), alongside)


def _check(line: list[Contender], inside: set[str], alongside: dict[str, str]) -> None:
    for one, other in itertools.combinations([one for one in line if one.child in inside], 2):
        own = one.ticket == alongside.get(other.child) or other.ticket == alongside.get(one.child)
        alone = Mark.WRITER in (one.mark, other.mark) or (one.up and other.up)
        assert own or not alone, (one, other)
    assert inside, "no contender makes progress"
