"""Tasks of taskiq."""

from __future__ import annotations

import asyncio

import bodies
from taskiq import SmartRetryMiddleware, TaskiqEvents, TaskiqState
from taskiq_redis import ListQueueBroker

from leasehold import AsyncClient, AsyncHold
from leasehold.integrations.taskiq import locked_task

broker = ListQueueBroker(bodies.BROKER, socket_timeout=None).with_middlewares(
    SmartRetryMiddleware(default_retry_count=2000, default_delay=1, use_delay_exponent=False)
)
locks = AsyncClient.from_url(bodies.LOCKS, response_timeout=1)


@broker.on_event(TaskiqEvents.WORKER_SHUTDOWN)
async def close(state: TaskiqState) -> None:
    await locks.close()


@broker.task(retry_on_error=True)
@locked_task(locks, bodies.TEMPLATE, **bodies.OPTIONS)
async def ship(order: str, seconds: float = 0, *, hold: AsyncHold) -> None:
    await bodies.aship(order, seconds, hold)


@broker.task(retry_on_error=True)
@locked_task(locks, bodies.TEMPLATE, on_busy="skip", **bodies.OPTIONS)
async def skip(order: str, seconds: float = 0, *, hold: AsyncHold) -> None:
    await bodies.aship(order, seconds, hold)


def send(messages: list[tuple[str, str, float]]) -> None:
    async def sending() -> None:
        await broker.startup()
        for task, order, seconds in messages:
            await {"ship": ship, "skip": skip}[task].kiq(order, seconds=seconds)  # type: ignore[call-arg]
        await broker.shutdown()

    asyncio.run(sending())
