"""The load generator: sends all requests at once, each on its own connection."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from leasehold_lab.demo.result import Failure, Visit

ANSWER_WITHIN = 120.0
"""Seconds after which a request without an answer counts as failed."""

Progress = Callable[[int, int], None]
"""Called with the numbers of requests answered and failed so far."""


def fire_beside(ports: Sequence[int], path: str, requests: int, progress: Progress) -> list[Visit | Failure]:
    """Run `fire` in another thread, and wait for it.

    Signals arrive in the main thread. An exception that a signal raises inside the event loop's own code can lose a
    callback, and then the loop waits for that task for ever. Here it can only interrupt the wait.
    """
    running: Future[Callable[[], object]] = Future()
    outcome: Future[list[Visit | Failure]] = Future()

    async def cancellable() -> list[Visit | Failure]:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        running.set_result(lambda: loop.call_soon_threadsafe(task.cancel))
        return await fire(ports, path, requests, progress)

    thread = threading.Thread(target=_finish, args=(cancellable, outcome), name="load", daemon=True)
    thread.start()
    try:
        return outcome.result()
    except BaseException:
        with suppress(RuntimeError):  # the loop is closed: it ended by itself
            running.result()()
        raise
    finally:
        thread.join()


async def fire(ports: Sequence[int], path: str, requests: int, progress: Progress) -> list[Visit | Failure]:
    """Send ``requests`` requests at the same time, in turn to each of ``ports``; return the outcome of each."""
    answered = failed = 0

    async def one(index: int) -> Visit | Failure:
        nonlocal answered, failed
        outcome = await visit(ports[index % len(ports)], path)
        if isinstance(outcome, Visit):
            answered += 1
        else:
            failed += 1
        progress(answered, failed)
        return outcome

    return await asyncio.gather(*(one(index) for index in range(requests)))


def _finish(
    work: Callable[[], Coroutine[Any, Any, list[Visit | Failure]]], outcome: Future[list[Visit | Failure]]
) -> None:
    try:
        outcome.set_result(asyncio.run(work()))
    except BaseException as error:  # raised again where the result is wanted
        outcome.set_exception(error)


async def visit(port: int, path: str) -> Visit | Failure:
    """Send one request and read its answer."""
    began = time.perf_counter()
    try:
        async with asyncio.timeout(ANSWER_WITHIN):
            status, body = await post(port, path)
        facts = json.loads(body)
        if status == 200:
            return Visit(latency=time.perf_counter() - began, **facts)
        return Failure(str(facts["error"]))
    except TimeoutError:
        return Failure(f"no answer within {ANSWER_WITHIN:.0f} s")
    except (OSError, EOFError, ValueError, LookupError, TypeError) as error:
        return Failure(f"{type(error).__name__}: {error}")


async def post(port: int, path: str) -> tuple[int, bytes]:
    """Send a POST without a body, in HTTP/1.1; return the status and the body of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        writer.write(head.encode("ascii"))
        answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        status_line, *lines = answer.rstrip().split("\r\n")
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        status = int(status_line.split(" ", 2)[1])
        if "content-length" not in fields:
            raise ValueError(f"HTTP status {status} without a length")
        body = await reader.readexactly(int(fields["content-length"]))
    finally:
        writer.close()
    if status != 200 and "json" not in fields.get("content-type", ""):
        raise ValueError(f"HTTP status {status}")
    return status, body
