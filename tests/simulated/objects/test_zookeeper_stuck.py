"""ZooKeeper: what would stay as long as a session lives: the nodes of an event loop that is stuck, or has no rights."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from kazoo.exceptions import NoAuthError
from test_zookeeper_tickets import KINDS, Scene, play

from leasehold import AsyncHold, StoreUnavailable
from leasehold.stores.zookeeper.connection.errors import to_error
from leasehold_lab.runtimes.virtual import Task

GO_ON = ("leasehold-zookeeper-expiry", "session")
"""The tasks that are threads in truth: the job that ends leases, and the driver."""

LEASE, PATIENCE = 2.0, 1.5

FREE = LEASE + PATIENCE + 2.0
"""Seconds after which nothing of a loop that is stuck blocks others."""

STEPS = 60


class Loop:
    """Is stuck when a task of the first client has made so many steps, for some time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.scene: Scene
        self.steps_until, self.stuck_for, self.until = 10**9, 0.0, 0.0
        step = Task._step

        def one(task: Task[Any]) -> None:
            scheduler = task._scheduler
            if task.name.startswith("first/") and not task.name.endswith(GO_ON):
                if scheduler.time < self.until:
                    scheduler.at(self.until, task.machine, task._step)
                    return
                self.steps_until -= 1
                if self.steps_until == 0:
                    self.until = scheduler.time + self.stuck_for
            step(task)

        monkeypatch.setattr(Task, "_step", one)

    def is_stuck_after(self, steps: int, seconds: float) -> None:
        self.steps_until, self.stuck_for = steps, seconds


@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_nobody_waits_long_for_a_loop_that_is_stuck_and_two_never_hold(
    monkeypatch: pytest.MonkeyPatch, kind: str, *, taken: bool
) -> None:
    loop, free = Loop(monkeypatch), 0

    async def story(scene: Scene) -> None:
        nonlocal free
        harness, chance = scene.harness, random.Random(f"{step}/{kind}/{taken}")
        mine, others = list[AsyncHold](), list[AsyncHold]()

        async def first() -> None:
            try:
                hold = await scene.mine().acquire(timeout=60.0)
            except StoreUnavailable:  # no answer in time
                return
            assert hold is not None
            assert hold.lost or not others, "the other one holds"
            mine.append(hold)
            await harness.sleep(chance.uniform(0.0, 1.0))
            mine.clear()
            if not hold.lost:
                await hold.release()

        async def other(began: float) -> None:
            nonlocal free
            async with scene.rival() as hold:
                others.append(hold)
                assert not any(one.held for one in mine), "the first one holds"
                assert harness.now() - began < FREE + 1.1, "beside up to a second for which the first one holds"
                free += harness.scheduler.time < loop.until
                await harness.sleep(0.1)
                others.clear()

        holder = await scene.rival().acquire() if taken else None
        loop.is_stuck_after(step, chance.uniform(FREE + 2.0, 2 * FREE))
        job = scene.machine.spawn(first)
        await harness.sleep(0.3)
        if holder is not None:
            await holder.release()
        second = harness.spawn(lambda: other(harness.now()))
        await second.result()
        await job.result()
        await harness.sleep(1.0)
        assert scene.nodes() == []

    for step in range(1, STEPS, 1 if kind == "lock" else 3):
        play(step, story, kind=kind, lease=LEASE, patience=PATIENCE)
    assert free >= 5


def test_a_removal_that_is_refused_is_repeated_seldom_and_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    async def story(scene: Scene) -> None:
        transport: Any = scene.first.store._transport  # type: ignore[attr-defined]
        ask_all, sent = transport.ask_all, list[float]()

        async def refuse(requests: Sequence[Any], until: float) -> list[Any]:
            if type(requests[0].form).__name__ == "Delete":
                sent.append(scene.harness.now())
                raise to_error(NoAuthError(), "h")
            return list(await ask_all(requests, until))

        holds = [await scene.first.lock(name, lease=1.0).acquire() for name in "bcdef"]
        transport.ask_all = refuse
        assert [await hold.release() for hold in holds if hold is not None] == [False] * 5
        await scene.harness.sleep(120.0)
        assert 5 * 4 <= sum(when > sent[-1] - 100.0 for when in sent) <= 5 * 6
        assert caplog.messages == [text for text in caplog.messages[:1] if "nodes' creator" in text]
        transport.ask_all = ask_all
        await scene.harness.sleep(31.0)
        assert scene.nodes() == []

    play(1, story)
