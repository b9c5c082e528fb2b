"""A whole run of a lock through a proxy, with one fault at a chunk of its requests or replies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from leasehold.errors import StoreUnavailable
from leasehold_lab.proxy.proxy import FaultProxy, Side

LEASE = 2.0
"""Seconds. Several runs share one process, so a renewal may be late by far more than a fault makes it."""

AT_ONCE = 16
"""Runs that share the process."""

FAULTS: dict[str, Callable[[FaultProxy, int], Any]] = {
    "drop request": lambda proxy, k: proxy.cut_at(k),
    "drop reply": lambda proxy, k: proxy.drop_reply(k),
    "reset before the reply": lambda proxy, k: proxy.cut_at(k, Side.REPLIES),
    "delay request": lambda proxy, k: proxy.delay(0.15, Side.REQUESTS, nth=k),
    "delay reply": lambda proxy, k: proxy.delay(0.15, Side.REPLIES, nth=k),
}


Make = Callable[..., Any]
"""Makes a lock: of a client, a name and options."""


def lock(client: Any, name: str, **options: Any) -> Any:
    return client.lock(name, **options)


async def whole_run(harness: Any, locks: Any, others: Any, make: Make = lock) -> list[int]:
    """Acquire, wait, hand over, renew, release; return the tokens in the order of the holds."""
    tokens = []
    async with make(locks, "x", lease=LEASE, timeout=5) as hold:
        tokens.append(hold.token)
        waiter = harness.spawn(lambda: make(others, "x", lease=LEASE, timeout=5).acquire())
        await harness.sleep(LEASE / 2)  # renewed once, waiting and holding
    got = await waiter.result()
    tokens.append(got.token)
    mine = harness.spawn(lambda: make(locks, "x", lease=LEASE, timeout=5).acquire())
    await harness.sleep(0.05)
    await got.release()
    last = await mine.result()
    tokens.append(last.token)
    last.raise_if_lost()
    await last.release()
    return tokens


def sweep(
    server: Any,
    namespace: str,
    harness: Any,
    name: str,
    chunks: range,
    *,
    assert_clean: Callable[[str], None],
    url_of: Callable[[str], str] = str,
    first: str = "",
    make: Make = lock,
    opened: Callable[[Any, FaultProxy], None] = lambda client, proxy: None,
) -> None:
    """Repeat the run for each chunk, several at once, each with its own proxy, clients and namespace.

    No caller notices a fault: a lost request is repeated, and a broken handshake is retried once. Each run meets one
    fault. So the second handshake succeeds, and no run may fail. ``first``: the error text of a store that does not
    repeat its first contact, if that was certainly not carried out. ``opened`` is called for each client and its proxy.
    """

    async def one(k: int) -> tuple[int, int, str]:
        space = f"{namespace}-{k}"
        with FaultProxy(server.port) as proxy:
            url = url_of(f"redis://127.0.0.1:{proxy.port}")
            async with harness.client(url, namespace=space) as locks, harness.client(url, namespace=space) as others:
                opened(locks, proxy)
                opened(others, proxy)
                fault = FAULTS[name](proxy, k)
                try:
                    tokens = await whole_run(harness, locks, others, make)
                    assert tokens == sorted(set(tokens))
                    outcome = "done"
                except StoreUnavailable as error:
                    outcome = str(error)
                hit = fault.hits
                fault.remove()
                again = await make(locks, "x", timeout=LEASE + 1.0).acquire()
                assert again is not None
                await again.release()
        return k, hit, outcome

    async def body(harness: Any) -> list[tuple[int, int, str]]:
        done = []
        for start in range(0, len(chunks), AT_ONCE):
            done += await harness.gather(*(one(k) for k in chunks[start : start + AT_ONCE]))
        return done

    results = harness.run(body)
    for k, _, _ in results:
        assert_clean(f"{namespace}-{k}")
    assert sum(bool(hits) for _, hits, _ in results) >= 12, "the sweep did not reach the end of the run"
    failed = {k: outcome for k, _, outcome in results if outcome != "done" and not (first and first in outcome)}
    assert not failed, failed
