"""A shop of FastAPI, run in uvicorn by tests. Its counters are files: without the lock, counts would be lost."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

from fastapi import Depends, FastAPI, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from leasehold import AsyncHold
from leasehold.integrations.fastapi import add_exception_handlers, leasehold_lifespan, lock, readiness
from support.workers import note

LONG = 600
"""A lease that does not end while a test runs: a client that gets the lock got it by a release."""

SHORT = 2
"""A lease that a test waits for."""

Counting = Annotated[AsyncHold, Depends(lock("count:{name}", timeout=60, lease=LONG))]
Working = Annotated[AsyncHold, Depends(lock("work:{name}", timeout=60, lease=LONG))]
Brief = Annotated[AsyncHold, Depends(lock("brief:{name}", timeout=1, lease=SHORT))]


class Order(BaseModel):
    name: str
    note: str = ""


async def of_order(order: Order) -> str:
    return f"work:{order.name}"


app = FastAPI(lifespan=leasehold_lifespan(os.environ["LOCKS"]))
add_exception_handlers(app, retry_after=7)
app.add_api_route("/ready", readiness())


def counted(name: str) -> tuple[Path, int]:
    path = Path(f"count-{name}")
    return path, int(path.read_text()) if path.exists() else 0


@app.post("/count/{name}")
async def count(name: str, _: Counting) -> int:
    path, before = counted(name)
    await asyncio.sleep(0.001)
    path.write_text(str(before + 1))
    return os.getpid()


@app.post("/count-in-a-thread/{name}")
def count_in_a_thread(name: str, _: Counting) -> int:
    path, before = counted(name)
    time.sleep(0.001)
    path.write_text(str(before + 1))
    return os.getpid()


@app.post("/work/{name}")
async def work(name: str, hold: Working, seconds: float = 0) -> int:
    note("begin", name=name)
    await asyncio.sleep(seconds)
    note("end", name=name)
    return hold.token


@app.post("/orders")
async def place(order: Order, hold: Annotated[AsyncHold, Depends(lock(of_order, lease=LONG))]) -> str:
    return hold.name


@app.post("/upload/{name}")
async def upload(name: str, request: Request, _: Working) -> int:
    note("begin", name=name)
    return sum([len(part) async for part in request.stream()])


@app.get("/stream/{name}")
async def stream(name: str, hold: Working, parts: int) -> StreamingResponse:
    async def body() -> AsyncIterator[bytes]:
        for _ in range(parts):
            yield b"held\n" if hold.held else b"free\n"
            await asyncio.sleep(0.01)

    return StreamingResponse(body())


@app.post("/brief/{name}")
async def brief(name: str, _: Brief, seconds: float = 0) -> str:
    note("begin", name=name)
    await asyncio.sleep(seconds)
    return "sold"


@app.post("/brief-in-a-thread/{name}")
def brief_in_a_thread(name: str, hold: Brief, seconds: float = 0) -> str:
    note("begin", name=name)
    until = time.monotonic() + seconds
    while time.monotonic() < until and not hold.lost:
        time.sleep(0.02)
    return "sold"
