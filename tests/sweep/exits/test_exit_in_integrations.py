"""An exception at every step of an integration, as a signal handler can raise it, while the process lives on.

Nobody is kept out for longer than a lease, though what outlives a call is still there: the client, the mutex of dogpile
while other threads wait for it, and the context of a task that calls an application.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import CodeType, SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from test_exit_anywhere import Stepped, Struck

from leasehold import AsyncClient, Client
from leasehold.integrations import fastapi
from leasehold.integrations.celery import locked_task, task
from leasehold.integrations.django import commands
from leasehold.integrations.dogpile import Mutex
from leasehold.stores.memory import Memory
from support.striking import Striking, ended_by

LEASE = 1.5
"""Seconds."""

living: list[Any] = []


def mutex_of_dogpile(client: Client, name: str) -> None:
    mutex = Mutex(client, name, LEASE, None)
    living.append(mutex)
    mutex.acquire()
    sys.settrace(None)  # an exit in the release is one in dogpile's own `finally`
    mutex.release()


def work(name: str) -> None: ...


def task_of_celery(permits: int | None) -> Callable[[Client, str], None]:
    app = Celery("struck", set_as_current=False)
    run = locked_task(app, name="{name}", permits=permits, lease=LEASE, task_name="work", lazy=False)(work)

    def call(client: Client, name: str) -> None:
        living.append(run.apply((name,), throw=True))

    return call


class Work:
    def execute(self) -> None: ...


class RunOnce(commands.RunOnceMixin, Work): ...


def command_of_django(client: Client, name: str) -> None:
    command = type("Command", (RunOnce,), {"lock_name": name})()
    living.append(command)
    command.execute()


CALLS: dict[str, Callable[[Client, str], None]] = {
    "dogpile": mutex_of_dogpile,
    "celery": task_of_celery(None),
    "celery, several": task_of_celery(2),
    "django": command_of_django,
}


@pytest.fixture(autouse=True)
def what_lives_on() -> Any:
    yield
    living.clear()


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # it was about to be
@pytest.mark.parametrize("name", CALLS)
def test_an_exit_in_an_integration_keeps_nobody_out(
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    record_property: Callable[[str, object], None],
) -> None:
    caplog.set_level(logging.CRITICAL, "leasehold")  # what was dropped is warned of
    memory, known, where = Memory(f"exit in {name}"), dict[CodeType, set[int]](), dict[str, str]()
    with Client(memory) as client, Client(memory) as looker:
        monkeypatch.setattr(task, "client_of", lambda app: client)
        short = SimpleNamespace(lock=partial(client.lock, lease=LEASE))
        monkeypatch.setattr(commands, "locks", {"default": short})
        for at in itertools.count():
            striking = Striking(at, known, SystemExit)
            with ended_by(striking):
                CALLS[name](client, f"name {at}")
            if not striking.where:
                break
            where[f"name {at}"] = striking.where
        until = time.monotonic() + 2 * LEASE
        while (left := looker.holds()) and time.monotonic() < until:
            time.sleep(0.05)
        assert [where[info.name] for info in left] == []
    record_property("sum:exits at a step", len(where))
    assert len(where) > 50


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # it was about to be
def test_an_exit_in_a_request_keeps_nobody_out_though_its_context_lives_on(
    caplog: pytest.LogCaptureFixture, record_property: Callable[[str, object], None]
) -> None:
    caplog.set_level(logging.CRITICAL, "leasehold")  # what was dropped is warned of
    memory, known, where = Memory("exit in a request"), dict[CodeType, set[int]](), dict[str, str]()

    async def request(client: AsyncClient, name: str) -> None:
        async with fastapi._for_a_thread(client.lock(name, lease=LEASE)):
            pass

    async def body() -> None:
        async with AsyncClient(memory) as client, AsyncClient(memory) as looker:
            for at in itertools.count():
                striking = Striking(at, known, Struck)
                with suppress(Struck):
                    await Stepped(request(client, f"name {at}"), striking)
                if not striking.where:
                    break
                where[f"name {at}"] = striking.where
            left, until = await looker.holds(), time.monotonic() + 2 * LEASE
            while left and time.monotonic() < until:
                await asyncio.sleep(0.05)
                left = await looker.holds()
            assert [where[info.name] for info in left] == []
            gc.collect()  # a task that was made when the exception came, and that nobody refers to
            async with client.lock("renewed", lease=2 * LEASE) as hold:
                await asyncio.sleep(2 * LEASE)
                assert hold.held

    asyncio.run(body())
    record_property("sum:exits at a step", len(where))
    assert len(where) > 50
