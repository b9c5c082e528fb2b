"""Locks that are children of the URL's path, as those of Spring Integration's ZookeeperLockRegistry are."""

from __future__ import annotations

import pytest

from leasehold import Client
from support.flavors import both


@pytest.fixture
def url(zookeeper_server, namespace):
    return f"{zookeeper_server.url}/{namespace}?namespace="


@both
def test_the_locks_are_children_of_the_path(zookeeper_server, url, namespace, harness):
    async def body(harness):
        async with harness.client(url) as locks, harness.client(url) as other:
            hold = await locks.lock("x").acquire()
            with zookeeper_server.connect() as kazoo:
                (node,) = kazoo.get_children(f"/{namespace}/x")
                assert "-lock-" in node
            assert [info.name for info in await other.holds()] == ["x"]
            waiter = harness.spawn(lambda: other.lock("x").acquire(timeout=20))
            await harness.sleep(0.2)
            await hold.release()
            got = await waiter.result()
            assert got.token > hold.token
            await got.release()
            assert await locks.versioned("v").put({"a": 1}) == 1
            assert (await other.versioned("v").get()).value == {"a": 1}

    harness.run(body)


@pytest.mark.parametrize(
    "wrong", ["zookeeper://h/a?namespace=b", "zookeeper://h/?namespace=", "zookeeper://h?namespace="]
)
def test_another_namespace_in_the_url_or_no_path_is_refused(wrong):
    with pytest.raises(
        ValueError, match="option 'namespace' in the zookeeper URL is empty, and needs a path: locks are"
    ):
        Client.from_url(wrong)


def test_a_namespace_of_the_client_contradicts_it():
    with pytest.raises(ValueError, match="namespace='jobs' contradicts the empty namespace= in the URL; leave one out"):
        Client.from_url("zookeeper://h/a?namespace=", namespace="jobs")
