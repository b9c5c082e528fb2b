"""The rights that the user of each node needs, with a quarantine and without."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

import pytest

from leasehold import StoreUnavailable
from leasehold_lab.servers import RedisReplicas, RedisServer
from support.flavors import both


async def tried(client, name, lease=2.5):
    try:
        return await client.lock(name, lease=lease).acquire(timeout=0.3)
    except StoreUnavailable:
        return None


@both
def test_the_rights_of_a_single_server_are_enough(namespace, harness):
    """A user who may do what locks on one server need may do what a node needs; one right less is named."""
    with ExitStack() as stack:
        nodes = [stack.enter_context(RedisServer(users=[rights("redis.md", namespace)])) for _ in range(3)]
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in nodes)

        async def body(harness):
            client, other = (harness.client(f"redlock://app:s3cret@{hosts}", namespace=namespace) for _ in range(2))
            hold = await client.lock("x").acquire()
            job = harness.spawn(lambda: other.lock("x").acquire(timeout=10))
            while not (await client.inspect("x")).waiters:
                await harness.sleep(0.01)
            await hold.renew()
            await hold.release()
            await (await job.result()).release()
            for node in nodes:
                node.command("ACL", "SETUSER", "app", "-hset")
            third = harness.client(f"redlock://app:s3cret@{hosts}", namespace=namespace)
            with pytest.raises(StoreUnavailable, match=r"lacks the right.* \+hset"):
                await third.lock("x").acquire(timeout=1)

        harness.run(body)


@both
def test_a_right_to_subscribe_that_is_granted_later_counts(namespace, harness):
    """The error names it. After it was granted, the same client waits, and is notified by all nodes."""
    with ExitStack() as stack:
        nodes = [stack.enter_context(RedisServer(users=[rights("redis.md", namespace)])) for _ in range(3)]
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in nodes)

        def allow(sign):
            for node in nodes:
                node.command("ACL", "SETUSER", "app", f"{sign}subscribe")

        async def body(harness):
            client, other = (harness.client(f"redlock://app:s3cret@{hosts}", namespace=namespace) for _ in range(2))
            hold = await client.lock("x", lease=60.0).acquire()
            allow("-")
            for _ in range(2):
                with pytest.raises(StoreUnavailable, match=r"\+subscribe"):
                    await other.lock("x", lease=60.0).acquire(timeout=10)
            allow("+")
            job = harness.spawn(lambda: other.lock("x", lease=60.0).acquire(timeout=10))
            while not (await client.inspect("x")).waiters:
                await harness.sleep(0.01)
            await harness.sleep(0.5)
            await hold.release()
            await (await job.result()).release()

        harness.run(body)


def rights(page, namespace):
    """Return what the page of a deployment says that a user needs."""
    text = (Path(__file__).parents[3] / "docs" / "backends" / page).read_text()
    rules = re.search(r"ACL SETUSER \S+ on >\S+ ([^`\n]+)", text)[1].replace("default:", f"{namespace}:")
    return f"app on >s3cret {rules}"


@both
def test_documented_rights_and_info_are_enough_for_a_quarantine(namespace, harness):
    users = [f"{rights('redis.md', namespace)} +info"]
    with (
        RedisServer(users=users) as alone,
        RedisServer(users=users) as second,
        RedisReplicas(1, users=users) as replicated,
    ):
        members = "|".join(group.url.replace("//", "//app:s3cret@") for group in (alone, second, replicated))
        url = f"redlock:{members}|?quarantine=1"

        async def body(harness):
            client, other = (harness.client(url, namespace=namespace) for _ in range(2))
            began = harness.now()
            while (hold := await tried(client, "x", 0.9)) is None:
                assert harness.now() - began < 5
            job = harness.spawn(lambda: other.lock("x", lease=0.9).acquire(timeout=10))
            while not (await client.inspect("x")).waiters:
                await harness.sleep(0.01)
            await hold.renew()
            await hold.release()
            await (await job.result()).release()
            for node in (alone, second, replicated.primary):
                node.command("ACL", "SETUSER", "app", "-info")
            with pytest.raises(StoreUnavailable, match=r"\+info"):
                await other.lock("x", lease=0.9).acquire(timeout=1)

        harness.run(body)
