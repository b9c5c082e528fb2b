"""Optimistic locking: a write that names an old version is refused and says so; updates of many lose none."""

from __future__ import annotations

from leasehold.errors import Conflict, LeaseLost
from leasehold_lab.conformance.case_context import NOISE, CaseContext, Variant, case, raised

NAME = "views of /index"
CLIENTS = 4
EACH = 10


@case((Variant.LOCK,), needs=("cells",))
async def a_value_comes_back_as_json_has_it(context: CaseContext) -> None:
    """There is none at first; JSON comes back as JSON has it, bytes as they are; each write is one version more."""
    ours, theirs = context.client().versioned(NAME), context.client().versioned(NAME)
    assert tuple(await ours.get()) == (None, 0)
    values: tuple[object, ...] = (7, "ü\x00", {"a": (1, None)}, None, [], b"", b"\x00\xff")
    for version, value in enumerate(values, start=1):
        assert await ours.put(value) == version
        seen = await theirs.get()
        assert seen.version == version
        assert seen.value == ({"a": [1, None]} if isinstance(value, dict) else value)


@case((Variant.LOCK,), needs=("cells",))
async def a_write_of_an_old_version_is_refused(context: CaseContext) -> None:
    """The error has what is there now, and nothing was changed."""
    ours, theirs = context.client().versioned(NAME), context.client().versioned(NAME)
    assert await ours.put("a", if_version=0) == 1
    late = await raised(Conflict, theirs.put("b", if_version=0))
    assert (late.value, late.version, late.name) == ("a", 1, NAME)
    assert await theirs.put("b", if_version=1) == 2
    await raised(Conflict, ours.put("c", if_version=1))
    await raised(Conflict, ours.put("c", if_version=7))
    assert tuple(await ours.get()) == ("b", 2)


@case((Variant.LOCK,), needs=("cells",))
async def a_late_holder_does_not_write(context: CaseContext) -> None:
    """A fenced write is refused when a later holder has written, whatever version it names."""
    value = context.client().versioned(NAME)
    await value.put("old", fence=5)
    await value.put("new", fence=9)
    late = await raised(LeaseLost, value.put("late", fence=6))
    assert late.token == 6
    await raised(LeaseLost, value.put("late", fence=6, if_version=2))
    assert tuple(await value.get()) == ("new", 2)


@case((Variant.LOCK,), needs=("cells",))
async def updates_of_many_lose_none(context: CaseContext) -> None:
    """Several clients add to one number at the same time, and every one counts."""

    async def count() -> None:
        views = context.client().versioned(NAME)
        for _ in range(EACH):
            await views.update(lambda seen: (seen or 0) + 1)

    await context.harness.gather(*(count() for _ in range(CLIENTS)))
    assert tuple(await context.client().versioned(NAME).get()) == (CLIENTS * EACH, CLIENTS * EACH)


@case((Variant.LOCK,), needs=("cells",))
async def an_update_gives_up_at_its_timeout(context: CaseContext) -> None:
    """One who is always overtaken hears of it; what it would have written is not there."""
    value, other = context.client().versioned(NAME), context.client().versioned(NAME)
    attempts: list[object] = []

    async def overtaken(seen: object) -> str:
        attempts.append(seen)
        await other.put(f"theirs {len(attempts)}")
        return "ours"

    start = context.harness.now()
    error = await raised(Conflict, value.update(overtaken, timeout=0.8))
    assert 0.8 <= context.harness.now() - start < 0.8 + 3 * NOISE
    assert len(attempts) > 2
    assert error.value == f"theirs {len(attempts)}"
    assert error.version == len(attempts)
    await raised(Conflict, value.update(overtaken, timeout=0))
    assert (await value.get()).value == f"theirs {len(attempts)}"


@case((Variant.LOCK,), needs=("cells",))
async def a_value_that_nobody_writes_is_forgotten(context: CaseContext) -> None:
    """After its life there is none, and versions begin anew."""
    value = context.client().versioned(NAME, ttl=0.2)
    await value.put("a")
    assert (await value.get()).version == 1
    await context.harness.sleep(context.gone(0.2))
    assert tuple(await value.get()) == (None, 0)
    assert await value.put("b", if_version=0) == 1


@case((Variant.LOCK,), needs=("cells",))
async def names_of_values_meet_no_others(context: CaseContext) -> None:
    """A lock, a result, a shared value and a versioned value may have the same name."""

    async def fetch() -> str:
        return "shared"

    client = context.client()
    await client.versioned(NAME).put("value")
    async with client.lock(NAME):
        assert await client.once(NAME, ttl=60).run(lambda: "result") == "result"
        assert await client.cached(NAME, 60, fetch).get() == "shared"
        assert await client.scheduled(NAME, at_least=60, at_most=60).run(lambda: None)
    assert tuple(await client.versioned(NAME).get()) == ("value", 1)
