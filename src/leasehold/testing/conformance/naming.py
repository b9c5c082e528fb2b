"""Any text is a name; different names, and the same name in different namespaces or kinds, never meet."""

from __future__ import annotations

from leasehold.errors import WrongKind
from leasehold.model import Departure, Granted, Kind, Rule
from leasehold.testing.conformance.arena import NAME, WITHIN, Arena, case, held, raised, ticket

NAMES = (
    "plain",
    "Plain",
    "plain ",
    " plain",
    "Müller & Söhne",
    "Mu\u0308ller & So\u0308hne",  # the same to the eye, other characters
    "鍵🔒",
    "{braces}",
    "{}",
    "}{",
    "{a}b",
    "a{b}",
    "a:b",
    "a%3Ab",
    "a%b",
    "a/b",
    "../a",
    "a\\b",
    "'; --",
    '"quoted"',
    "*",
    "?",
    "[a-z]",
    "nul\0inside",
    "line\nbreak",
    "\r\n",
    "\x01\x1f\x7f",
    "\u2028",
    "x" * 512,
    "é" * 256,
)


@case()
async def any_text_is_a_name(arena: Arena) -> None:
    """All of them are held at the same time, each found under its own name and no other."""
    client = arena.client()
    holds = {name: held(await client.lock(name).acquire(blocking=False)) for name in NAMES}
    for name, hold in holds.items():
        info = await client.inspect(name)
        assert info is not None
        assert info.name == name
        assert [who.token for who in info.holders] == [hold.token]
        assert name in [info.name for info in await client.holds(name)]
    assert [info.name for info in await client.holds()] == sorted(NAMES)
    for hold in holds.values():
        assert await hold.release() is True
    assert await client.holds() == []


@case()
async def namespaces_do_not_meet(arena: Arena) -> None:
    """The same name is another lock in another namespace, however the two are spelled together."""
    root = arena.namespace
    pairs = [(root, "a:b"), (f"{root}:a", "b"), (f"{root}{{a}}", "b"), (f"{root}*", "b"), (f"{root}%", "b")]
    clients = [(arena.client(namespace=namespace), name) for namespace, name in pairs]
    holds = [held(await client.lock(name).acquire(blocking=False)) for client, name in clients]
    for client, name in clients:
        assert [info.name for info in await client.holds()] == [name]
    for hold in holds:
        assert await hold.release() is True


@case(needs=("permits",))
async def a_name_has_one_kind_at_a_time(arena: Arena) -> None:
    """A name in use as a semaphore refuses a lock, and the other way round; when it is free, it is free for either."""
    client = arena.client()
    mine = ticket(client, Rule(Kind.SEMAPHORE, exclusive=False, permits=1, limit=3))
    other = ticket(client, Rule(Kind.SEMAPHORE, exclusive=False, permits=1, limit=4))
    answer = await client.store.claim(NAME, mine, join=True, within=WITHIN)
    assert isinstance(answer, Granted)
    error = await raised(WrongKind, arena.lock().acquire(timeout=1))
    assert error.name == NAME
    await raised(WrongKind, client.store.claim(NAME, other, join=True, within=WITHIN))
    assert await client.store.leave(NAME, mine, how=Departure.RELEASE, within=WITHIN)
    hold = await arena.holder()
    await raised(WrongKind, client.store.claim(NAME, mine, join=True, within=WITHIN))
    hold.check()
    assert await hold.release() is True
