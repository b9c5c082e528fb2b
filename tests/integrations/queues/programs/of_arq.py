"""Jobs of arq. It runs in an environment of its own."""

from __future__ import annotations

import asyncio
from typing import Any

import bodies
from arq import create_pool
from arq.connections import RedisSettings

from leasehold import AsyncClient
from leasehold.integrations.arq import locked_job

locks = AsyncClient.from_url(bodies.LOCKS, response_timeout=1)


@locked_job(locks, bodies.TEMPLATE, delay=0.2, **bodies.OPTIONS)
async def ship(ctx: dict[str, Any], order: str, seconds: float = 0, *, hold: Any) -> None:
    await bodies.aship(order, seconds, hold)


@locked_job(locks, bodies.TEMPLATE, on_busy="skip", **bodies.OPTIONS)
async def skip(ctx: dict[str, Any], order: str, seconds: float = 0, *, hold: Any) -> None:
    await bodies.aship(order, seconds, hold)


async def close(ctx: dict[str, Any]) -> None:
    await locks.close()


class WorkerSettings:
    functions = (ship, skip)
    redis_settings = RedisSettings.from_dsn(bodies.BROKER)
    max_tries = 200
    poll_delay = 0.1
    on_shutdown = close


def send(messages: list[tuple[str, str, float]]) -> None:
    async def sending() -> None:
        pool = await create_pool(WorkerSettings.redis_settings)
        for task, order, seconds in messages:
            await pool.enqueue_job(task, order, seconds=seconds)
        await pool.aclose()

    asyncio.run(sending())
