"""A worker with a scheduler of a flavor, of which each tick writes a line: ``ticking.py background|blocking|asyncio``.

As a module it has the applications ``app``, for uvicorn and gunicorn.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.schedulers.base import BaseScheduler
from apscheduler.schedulers.blocking import BlockingScheduler

from leasehold import AsyncClient, Client, StoreUnavailable
from leasehold.integrations.apscheduler import AsyncIOExecutor, ThreadPoolExecutor
from support.workers import note

OPTIONS: dict[str, Any] = {"at_most": 2.0}
JOB: dict[str, Any] = json.loads(os.environ.get("JOB", '{"trigger": "cron", "second": "*"}'))
ANY = datetime(2000, 1, 1)  # APScheduler refuses a job with a parameter that has no default
WORK = float(os.environ.get("WORK", "0"))


def job(tick: datetime = ANY) -> None:
    note("run", tick=tick.timestamp())
    time.sleep(WORK)


async def ajob(tick: datetime = ANY) -> None:
    note("run", tick=tick.timestamp())
    await asyncio.sleep(WORK)


def failed(event: Any) -> None:
    known = isinstance(event.exception, StoreUnavailable)
    error = "StoreUnavailable" if known else repr(event.exception)
    note("failed", error=error, tick=event.scheduled_run_time.timestamp())


def prepared(scheduler: BaseScheduler, function: Callable[..., Any]) -> BaseScheduler:
    scheduler.add_job(function, id="job", **{"misfire_grace_time": 5, **JOB})
    scheduler.add_listener(failed, 8192)  # EVENT_JOB_ERROR
    scheduler.start()
    return scheduler


def blocking(kind: type[BaseScheduler]) -> BaseScheduler:
    locks = Client.from_url(os.environ["LOCKS"], response_timeout=1)
    return prepared(kind(executors={"default": ThreadPoolExecutor(locks, **OPTIONS)}), job)


def on_loop(executor: AsyncIOExecutor) -> BaseScheduler:
    return prepared(AsyncIOScheduler(executors={"default": executor}), ajob)


async def until_killed() -> None:
    async with AsyncClient.from_url(os.environ["LOCKS"], response_timeout=1) as locks:
        on_loop(AsyncIOExecutor(locks, **OPTIONS))
        note("up")
        await asyncio.Event().wait()


@asynccontextmanager
async def lifespan() -> AsyncIterator[None]:
    async with AsyncClient.from_url(os.environ["LOCKS"], response_timeout=1) as locks:
        executor = AsyncIOExecutor(locks, **OPTIONS)
        scheduler = on_loop(executor)
        note("up")
        yield
        scheduler.shutdown()
        await executor.wait_closed()


async def app(
    scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[..., Awaitable[None]]
) -> None:
    """An ASGI application whose only part is its lifespan."""
    if scope["type"] != "lifespan":
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})
        return
    await receive()
    async with lifespan():
        await send({"type": "lifespan.startup.complete"})
        await receive()
    await send({"type": "lifespan.shutdown.complete"})


def wsgi(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    """A WSGI application; gunicorn imports this module in each worker."""
    start_response("204 No Content", [])
    return []


if os.environ.get("WSGI"):
    blocking(BackgroundScheduler)
    note("up")

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    if sys.argv[1] == "asyncio":
        asyncio.run(until_killed())
    elif sys.argv[1] == "blocking":
        note("up")
        blocking(BlockingScheduler)
    else:
        blocking(BackgroundScheduler)
        note("up")
        while True:
            time.sleep(60)
