"""Beat on three nodes, on real processes and a real broker: no tick is lost, and what is sent twice has one id."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from beats import Nodes, beating
from workers import HERE, PATIENCE, Site

from leasehold.integrations.celery.runs import GONE
from leasehold_lab.servers import RedisServer
from leasehold_lab.servers.base import free_port
from support.patience import until


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Site]:
    """A server of the test's own, which keeps its data when it is restarted."""
    with RedisServer(append_only=True) as server:
        yield Site(server, tmp_path)


def pass_ticks(nodes: Nodes, count: float = 1) -> None:
    """Let so many ticks become due, and be sent."""
    time.sleep(count * nodes.every)


def said(nodes: Nodes) -> str:
    return "\n".join(program.said() for program in nodes.programs.values())


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("seconds", "pause", "every", "lease", "entries"),
    [
        pytest.param(12, 4, 2.9, 1.5, 3, id="short"),
        pytest.param(300, 10, 4.7, 3, 10, id="five minutes", marks=pytest.mark.nightly),
    ],
)
def test_kill_9_of_the_leader_loses_and_doubles_nothing(
    own: Site, seconds: float, pause: float, every: float, lease: float, entries: int
) -> None:
    with beating(own, every=every, entries=entries, lease=lease) as nodes, own.worker(pool="solo"):
        start = time.monotonic()
        for number in range(1, int(seconds / pause) + 1):
            time.sleep(max(0.0, start + number * pause - time.monotonic()))
            nodes.kill_leader()
        pass_ticks(nodes)
        end = time.time()
        time.sleep(every)
        figures = nodes.judge(own.records("ticks"), end)
        hand_over = max(nodes.hand_overs)
    told = f"{figures}, {nodes.kills} kills, hand-over {min(nodes.hand_overs):.1f} to {hand_over:.1f} s"
    print(told)
    assert figures.expected >= seconds / every * entries * 0.7, told
    assert (figures.lost, figures.twice) == (0, 0), f"{told}\n{said(nodes)}"
    assert figures.doubled <= nodes.kills, told


def test_a_leader_that_dies_before_it_sent_loses_nothing(own: Site) -> None:
    with beating(own, every=2, lease=1, nodes=2, INNER="clockwork:DiesBeforeSending") as nodes:
        struck(nodes)
        pass_ticks(nodes, 2)
        end = time.time()
        pass_ticks(nodes)
        figures = nodes.judge(nodes.sent(), end)
    assert figures.expected >= nodes.entries
    assert (figures.lost, figures.twice, figures.doubled) == (0, 0, 0), f"{figures}\n{said(nodes)}"


def test_a_leader_that_dies_after_it_sent_doubles_one_tick_with_the_same_id(own: Site) -> None:
    with beating(own, every=2, lease=1, nodes=2, INNER="clockwork:DiesAfterSending") as nodes:
        struck(nodes)
        pass_ticks(nodes, 2)
        end = time.time()
        pass_ticks(nodes)
        figures = nodes.judge(nodes.sent(), end)
    assert figures.expected >= nodes.entries
    assert (figures.lost, figures.twice, figures.doubled) == (0, 0, 1), f"{figures}\n{said(nodes)}"
    assert "it may have been sent" in said(nodes)


def test_a_leader_that_was_stopped_sends_nothing_when_it_wakes_up(own: Site) -> None:
    with beating(own, every=2, lease=1, nodes=2) as nodes:
        nodes.until_quiet()
        number = nodes.strike(signal.SIGSTOP)
        pass_ticks(nodes)
        before = nodes.programs[number].said()
        nodes.programs[number].send(signal.SIGCONT)
        until(lambda: "leads no more" in nodes.programs[number].said(), within=PATIENCE)
        end = time.time() + nodes.every
        pass_ticks(nodes)
        figures = nodes.judge(nodes.sent(), end)
        after = nodes.programs[number].said().removeprefix(before).partition("leads no more")[0]
    assert figures.expected >= nodes.entries
    assert (figures.lost, figures.twice, figures.doubled) == (0, 0, 0), f"{figures}\n{said(nodes)}"
    assert "Sending" not in after, after


def test_a_leader_that_is_stopped_between_check_and_send_doubles_one_tick_with_the_same_id(own: Site) -> None:
    """The window that remains, and what it costs."""
    with beating(own, every=2, lease=1, nodes=2, INNER="clockwork:StopsBeforeSending") as nodes:
        pid = struck(nodes)
        stopped = next(program for program in nodes.programs.values() if program.process.pid == pid)
        pass_ticks(nodes, 1.5)
        stopped.send(signal.SIGCONT)
        until(lambda: "leads no more" in stopped.said(), within=PATIENCE)
        end = time.time()
        pass_ticks(nodes)
        figures = nodes.judge(nodes.sent(), end)
    assert figures.expected >= nodes.entries
    assert (figures.lost, figures.twice, figures.doubled) == (0, 0, 1), f"{figures}\n{said(nodes)}"


def test_a_restart_of_the_server_loses_nothing(own: Site) -> None:
    with beating(own, every=3, lease=2, nodes=2) as nodes:
        nodes.until_quiet()
        own.server.kill()
        pass_ticks(nodes, 0.7)  # a tick is due while the server is down
        own.server.start()
        pass_ticks(nodes, 1.5)
        end = time.time()
        pass_ticks(nodes)
        figures = nodes.judge(nodes.sent(), end)
    assert figures.expected >= nodes.entries
    assert (figures.lost, figures.twice) == (0, 0), f"{figures}\n{said(nodes)}"
    assert figures.doubled <= nodes.entries, figures
    assert all(program.process.returncode == -signal.SIGKILL for program in nodes.programs.values()), "none has ended"


def test_sigterm_hands_over_at_once(own: Site) -> None:
    with beating(own, every=2, lease=30, nodes=2) as nodes:
        number = nodes.strike(signal.SIGTERM)
        assert nodes.programs[number].process.wait(PATIENCE) == 0, nodes.programs[number].said()
        end = time.time() + nodes.every
        pass_ticks(nodes, 2)
        figures = nodes.judge(nodes.sent(), end)
    assert nodes.hand_overs[0] < 15, "it resigned: no node waited for the lease"
    assert figures.expected >= nodes.entries
    assert (figures.lost, figures.twice, figures.doubled) == (0, 0, 0), f"{figures}\n{said(nodes)}"


def test_a_leader_that_cannot_reach_the_broker_lets_another_lead(own: Site) -> None:
    with beating(own, every=1, lease=1, nodes=0, wait=False) as nodes:
        nodes.start(0, BROKER_URL=f"redis://127.0.0.1:{free_port()}/1")
        first = nodes.until_led()
        nodes.start(1)
        until(nodes.sent, within=PATIENCE)
        assert nodes.until_led(after=first.token).token > first.token
    assert "this node resigns" in nodes.programs[0].said()


def struck(nodes: Nodes) -> int:
    """Wait until a leader was struck, and another leads; return the process."""
    with redis.Redis.from_url(nodes.site.broker) as broker:
        until(lambda: broker.exists("struck"), within=PATIENCE)
        pid = int(json.loads(broker.get("struck") or b"0"))  # type: ignore[arg-type]
    until(lambda: (leader := nodes.leader()) is not None and int(leader.owner.split(":")[1]) != pid, within=PATIENCE)
    return pid


def test_the_schedule_of_django_goes_on_and_one_off_tasks_run_once(own: Site) -> None:
    """The killed leader has not saved to the database that the one-off task ran."""
    database = str(own.folder / "db.sqlite3")
    subprocess.run(
        [sys.executable, str(HERE / "djclock.py")], env=own.environment(DATABASE=database, LEASE="1"), check=True
    )
    with beating(own, every=1, lease=1, nodes=2, app="djclock", DATABASE=database) as nodes:
        until(lambda: {each["entry"] for each in nodes.sent()} == {"often", "once"}, within=PATIENCE)
        cell = nodes.client.versioned("celery-beat/djclock/once")
        until(lambda: GONE in (cell.get().value or {}), within=PATIENCE)
        nodes.until_quiet()
        nodes.strike(signal.SIGKILL)
        before = len(nodes.sent())
        until(lambda: len(nodes.sent()) >= before + 3, within=PATIENCE)
        sent = nodes.sent()
    assert sum(each["entry"] == "once" for each in sent) == 1, sent
    assert len({each["id"] for each in sent}) == len(sent)


def test_a_one_off_task_runs_once_each_time_it_is_switched_on_whatever_happens_to_its_leader() -> None:
    """In a process of its own: Django has one configuration."""
    env = {**os.environ, "DATABASE": ":memory:"}
    done = subprocess.run(
        [sys.executable, str(HERE / "djonce.py")], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
