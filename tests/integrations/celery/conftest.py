"""One Redis and the app of the tests, in the test's own process, too."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import celery
import kombu.pools
import pytest
from celery import _state
from workers import HERE, Site

from leasehold.integrations.celery.clients import close_clients
from leasehold_lab.servers import RedisServer
from support.plugins.leaks import lasting


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with RedisServer() as server:
        lasting.add(server.pid)
        yield Site(server, tmp_path_factory.mktemp("site"))


@pytest.fixture
def shop(site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The app's module in this process, which sends tasks."""
    monkeypatch.syspath_prepend(str(HERE))
    for name, value in site.environment().items():
        monkeypatch.setenv(name, value)
    module = importlib.import_module("shop")
    if old := module.records.keys("records:*"):  # of a run before this one
        module.records.delete(*old)
    yield module
    close_clients()
    kombu.pools.reset()
    module.app.backend.client.connection_pool.disconnect()
    module.app.backend.result_consumer.stop()
    module.app.close()
    module.records.close()
    del sys.modules["shop"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if celery.VERSION < (5, 4):
        for item in items:
            if item.path.is_relative_to(HERE):
                item.add_marker(pytest.mark.leaks("the result backend of an old Celery keeps its connections"))


@pytest.fixture(autouse=True)
def own_tasks() -> Iterator[None]:
    """Celery registers the tasks of each app with all later apps of the process; not those of other tests."""
    before = set(_state._on_app_finalizers)
    yield
    _state._on_app_finalizers.intersection_update(before)
