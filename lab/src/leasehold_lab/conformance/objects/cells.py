"""A cell is a value with a version: it changes only if every condition is true, and never for an older token."""

from __future__ import annotations

from leasehold._model import CELL_LIMIT, Change
from leasehold_lab.conformance.case_context import NOISE, CaseContext, case, raised

NAME = "a {cell}: ключ"


@case(needs=("cells",))
async def each_change_of_a_cell_increments_its_version(context: CaseContext) -> None:
    """A cell begins without a value, at version 0. Each change adds one; a value is any bytes."""
    store = context.client().store
    nothing = await store.compare_and_set(NAME, Change())
    assert (nothing.value, nothing.version, nothing.changed) == (None, 0, False)
    for version, value in enumerate((b"", b"\x00\xff\r\n", "ü".encode(), b"x" * CELL_LIMIT), start=1):
        after = await store.compare_and_set(NAME, Change(value))
        assert (after.value, after.version, after.changed) == (value, version, True)
        seen = await store.compare_and_set(NAME, Change())
        assert (seen.value, seen.version, seen.changed) == (value, version, False)


@case(needs=("cells",))
async def compare_and_set_needs_the_current_version(context: CaseContext) -> None:
    """A compare-and-set with an old version changes nothing and returns the current value."""
    first, second = context.client().store, context.client().store
    assert (await first.compare_and_set(NAME, Change(b"a", if_version=0))).changed
    late = await second.compare_and_set(NAME, Change(b"b", if_version=0))
    assert (late.value, late.version, late.changed) == (b"a", 1, False)
    assert (await second.compare_and_set(NAME, Change(b"b", if_version=1))).changed
    assert not (await first.compare_and_set(NAME, Change(b"c", if_version=1))).changed
    assert not (await first.compare_and_set(NAME, Change(b"c", if_version=3))).changed
    seen = await first.compare_and_set(NAME, Change())
    assert (seen.value, seen.version) == (b"b", 2)


@case(needs=("cells",))
async def concurrent_increments_of_a_cell_lose_none(context: CaseContext) -> None:
    """Concurrent clients that read, add one and compare-and-set until they succeed lose no update."""

    async def add() -> None:
        store = context.client().store
        for _ in range(5):
            while True:
                cell = await store.compare_and_set(NAME, Change())
                value = b"%d" % (int(cell.value or b"0") + 1)
                if (await store.compare_and_set(NAME, Change(value, if_version=cell.version))).changed:
                    break

    for job in [context.harness.spawn(add) for _ in range(3)]:
        await job.result()
    seen = await context.client().store.compare_and_set(NAME, Change())
    assert (seen.value, seen.version) == (b"15", 15)


@case(needs=("cells",))
async def a_cell_refuses_an_older_token(context: CaseContext) -> None:
    """A write with a token below the highest one seen changes nothing."""
    store = context.client().store
    big = 1_700_000_000_000_000  # of the size of real tokens: microseconds since 1970
    assert (await store.compare_and_set(NAME, Change(b"a", fence=big))).fence == big
    assert (await store.compare_and_set(NAME, Change(b"b", fence=big))).changed
    late = await store.compare_and_set(NAME, Change(b"c", fence=big - 1))
    assert (late.value, late.fence, late.changed) == (b"b", big, False)
    assert (await store.compare_and_set(NAME, Change(b"d", fence=big + 1))).changed
    assert not (await store.compare_and_set(NAME, Change(b"e", if_version=1, fence=big + 2))).changed
    assert not (await store.compare_and_set(NAME, Change(b"e", if_version=3, fence=big))).changed
    seen = await store.compare_and_set(NAME, Change())
    assert (seen.value, seen.version, seen.fence) == (b"d", 3, big + 1)


@case(needs=("cells",))
async def a_cell_expires_after_its_ttl(context: CaseContext) -> None:
    """``ttl`` counts from the last change."""
    store = context.client().store
    ttl = context.at_least_shortest(5 * NOISE)
    assert (await store.compare_and_set(NAME, Change(b"a", ttl=ttl))).changed
    await context.harness.sleep(0.55 * ttl)
    assert (await store.compare_and_set(NAME, Change(b"b", ttl=ttl))).changed
    await context.harness.sleep(0.55 * ttl)
    assert (await store.compare_and_set(NAME, Change())).value == b"b"
    await context.harness.sleep(context.expired_after(0.45 * ttl))
    gone = await store.compare_and_set(NAME, Change())
    assert (gone.value, gone.version, gone.fence) == (None, 0, 0)


@case(needs=("cells",))
async def cells_and_locks_of_one_name_are_independent(context: CaseContext) -> None:
    """Cells and locks of one name, and cells of other names and namespaces, do not affect each other."""
    client, elsewhere = context.client(), context.client(namespace=f"{context.namespace}-other")
    hold = await context.holder(client, NAME)
    assert (await client.store.compare_and_set(NAME, Change(b"a", if_version=0))).changed
    assert (await client.store.compare_and_set(f"{NAME} ", Change())).value is None
    assert (await elsewhere.store.compare_and_set(NAME, Change())).value is None
    hold.raise_if_lost()
    assert [info.name for info in await client.holds()] == [NAME]
    assert await hold.release() is True
    assert (await client.store.compare_and_set(NAME, Change())).value == b"a"


@case(needs=("cells",))
async def a_cell_refuses_a_value_that_is_too_large(context: CaseContext) -> None:
    """A value that is too large raises an error at once and changes nothing."""
    store = context.client().store
    await raised(ValueError, store.compare_and_set(NAME, Change(b"x" * (CELL_LIMIT + 1))))
    assert (await store.compare_and_set(NAME, Change())).value is None
