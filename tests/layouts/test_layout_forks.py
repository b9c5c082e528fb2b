"""A forked child uses the locks of a layout by connections of its own, and leaves those of its parent alone."""

from __future__ import annotations

import os
import threading

import pytest
from layout_keys import LAYOUT_NAMES, assert_clean, url_of

from leasehold import Client
from support.patience import until


@pytest.mark.parametrize("layout", LAYOUT_NAMES)
def test_a_child_waits_and_acquires(redis_server, namespace, layout):
    with Client.from_url(url_of(redis_server.url, layout), namespace=namespace) as locks:
        waited = list[float]()
        hold = locks.lock("x").acquire()
        waiter = threading.Thread(target=lambda: waited.append(locks.lock("x").acquire(timeout=20).release()))
        waiter.start()
        until(lambda: len(locks.inspect("x").waiters) == 1)
        child = os.fork()
        if child == 0:
            try:
                got = locks.lock("x").acquire(timeout=20)
                got.release()
                os._exit(0)
            finally:
                os._exit(1)
        until(lambda: len(locks.inspect("x").waiters) == 2)
        hold.release()
        waiter.join(20)
        assert waited == [True]
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert_clean(redis_server, layout, namespace)
