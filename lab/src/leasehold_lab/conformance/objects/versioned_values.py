"""Optimistic locking: a write with an old version is refused; concurrent updates lose none."""

from __future__ import annotations

from leasehold.errors import Conflict, LeaseLost
from leasehold_lab.conformance.case_context import LASTING, NOISE, CaseContext, Variant, case, raised

NAME = "views of /index"
LONGEST_NAME = 502
"""Bytes: a store keeps 512, of which ten say that it is a versioned value."""

CLIENTS = 4
EACH = 10


@case((Variant.LOCK,), needs=("cells",))
async def a_versioned_value_is_json_or_bytes(context: CaseContext) -> None:
    """A value begins absent. JSON is returned as parsed, bytes unchanged; each write adds one to the version."""
    ours, theirs = context.client().versioned(NAME), context.client().versioned(NAME)
    assert tuple(await ours.get()) == (None, 0)
    values: tuple[object, ...] = (7, "ü\x00", {"a": (1, None)}, None, [], b"", b"\x00\xff")
    for version, value in enumerate(values, start=1):
        assert await ours.put(value) == version
        seen = await theirs.get()
        assert seen.version == version
        assert seen.value == ({"a": [1, None]} if isinstance(value, dict) else value)


@case((Variant.LOCK,), needs=("cells",))
async def a_versioned_value_has_a_name_that_the_store_keeps(context: CaseContext) -> None:
    """The longest name works, whole; a longer one raises an error before any request is sent."""
    client, longest = context.client(), "n" * LONGEST_NAME
    assert await client.versioned(longest).put("whole") == 1
    assert tuple(await context.client().versioned(longest).get()) == ("whole", 1)
    assert tuple(await client.versioned(longest[1:]).get()) == (None, 0)

    async def made(name: str) -> object:
        return client.versioned(name)

    for more in ("n", 10 * "n"):
        assert "versioned/" in str(await raised(ValueError, made(longest + more)))


@case((Variant.LOCK,), needs=("cells",))
async def a_write_with_an_old_version_is_refused(context: CaseContext) -> None:
    """The error has the current value, and nothing is changed."""
    ours, theirs = context.client().versioned(NAME), context.client().versioned(NAME)
    assert await ours.put("a", if_version=0) == 1
    late = await raised(Conflict, theirs.put("b", if_version=0))
    assert (late.value, late.version, late.name) == ("a", 1, NAME)
    assert await theirs.put("b", if_version=1) == 2
    await raised(Conflict, ours.put("c", if_version=1))
    await raised(Conflict, ours.put("c", if_version=7))
    assert tuple(await ours.get()) == ("b", 2)


@case((Variant.LOCK,), needs=("cells",))
async def a_versioned_value_refuses_an_older_token(context: CaseContext) -> None:
    """A fenced write is refused after a write of a newer holder, whatever version it names."""
    value = context.client().versioned(NAME)
    await value.put("old", fence=5)
    await value.put("new", fence=9)
    late = await raised(LeaseLost, value.put("late", fence=6))
    assert late.token == 6
    await raised(LeaseLost, value.put("late", fence=6, if_version=2))
    assert tuple(await value.get()) == ("new", 2)


@case((Variant.LOCK,), needs=("cells",))
async def concurrent_updates_lose_none(context: CaseContext) -> None:
    """Several clients add to one number at the same time, and no addition is lost."""

    async def count() -> None:
        views = context.client().versioned(NAME)
        for _ in range(EACH):
            await views.update(lambda seen: (seen or 0) + 1)

    await context.harness.gather(*(count() for _ in range(CLIENTS)))
    assert tuple(await context.client().versioned(NAME).get()) == (CLIENTS * EACH, CLIENTS * EACH)


@case((Variant.LOCK,), needs=("cells",))
async def an_update_raises_at_its_timeout(context: CaseContext) -> None:
    """An update that always loses the race raises at its timeout, and changes nothing."""
    value, other = context.client().versioned(NAME), context.client().versioned(NAME)
    attempts: list[object] = []

    async def overtaken(seen: object) -> str:
        attempts.append(seen)
        await other.put(f"theirs {len(attempts)}")
        return "ours"

    start = context.harness.now()
    error = await raised(Conflict, value.update(overtaken, timeout=2 * NOISE))
    assert context.harness.now() - start >= 2 * NOISE
    context.ended_within(start, 4 * NOISE)
    assert len(attempts) > 2
    assert error.value == f"theirs {len(attempts)}"
    assert error.version == len(attempts)
    await raised(Conflict, value.update(overtaken, timeout=0))
    assert (await value.get()).value == f"theirs {len(attempts)}"


@case((Variant.LOCK,), needs=("cells",))
async def a_versioned_value_expires_after_its_ttl(context: CaseContext) -> None:
    """After its ``ttl`` the value is absent, and versions restart."""
    value = context.client().versioned(NAME, ttl=LASTING)
    await value.put("a")
    assert (await value.get()).version == 1
    await context.harness.sleep(context.expired_after(LASTING))
    assert tuple(await value.get()) == (None, 0)
    assert await value.put("b", if_version=0) == 1


@case((Variant.LOCK,), needs=("cells",))
async def values_of_different_primitives_are_independent(context: CaseContext) -> None:
    """A lock, a result, a cached value and a versioned value may have the same name."""
    client = context.client()

    async def fetch() -> str:
        return "shared"

    await client.versioned(NAME).put("value")
    async with client.lock(NAME):
        assert await client.once(NAME, ttl=60).run(lambda: "result") == "result"
        assert await client.cached(NAME, 60, fetch).get() == "shared"
        assert await client.scheduled(NAME, at_least=60, at_most=60).run(lambda: None)
    assert tuple(await client.versioned(NAME).get()) == ("value", 1)
