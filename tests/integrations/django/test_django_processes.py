"""Workers of gunicorn and uvicorn, and management commands in several processes; the store is killed in the middle."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sites import APP, TABLES, Site, command, ended, made

from leasehold import Client
from leasehold_lab.servers import RedisServer
from leasehold_lab.servers.base import free_port
from support.patience import until

SQLITE = pytest.mark.parametrize("system", ["sqlite"])


@pytest.fixture
def stores(redis_server: RedisServer, namespace: str) -> dict[str, Any]:
    return {"default": {"URL": redis_server.url, "NAMESPACE": namespace}}


@contextmanager
def serving(site: Site, kind: str, workers: int = 2, **env: Any) -> Iterator[int]:
    """Serve the project; yield the port."""
    port = free_port()
    gunicorn = ["-m", "gunicorn", "website.wsgi", "--preload", "-w", str(workers), "--threads", "4"]
    uvicorn = ["-m", "uvicorn", "website.asgi:application", "--port", str(port), "--log-level", "warning"]
    arguments = [*gunicorn, "-b", f"127.0.0.1:{port}"] if kind == "wsgi" else uvicorn
    with subprocess.Popen(
        [sys.executable, *arguments], env=site.environment(**env), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as server:
        try:
            until(lambda: answer(port, "nowhere/")[0] == 404, 30)
            yield port
        finally:
            server.terminate()
            _, said = server.communicate(timeout=30)
    assert server.returncode in (0, -15), said.decode()
    assert b"never awaited" not in said, said.decode()
    assert b"ResourceWarning" not in said, said.decode()


def answer(port: int, path: str) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=30) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        return error.code, {}
    except OSError:
        return 0, {}


@pytest.mark.parametrize("kind", ["wsgi", "asgi"])
@SQLITE
def test_views_of_each_kind(site: Site, kind: str, stores: dict[str, Any]) -> None:
    """Also an async view under WSGI, which gets an event loop for each request; the tokens are those of one lock."""
    paths = ["sell/", "asell/", "bridged/"] * 8
    with serving(site, kind, DJ_LEASEHOLD=stores) as port, ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda path: answer(port, path), paths))
        assert [status for status, _ in answers] == [200] * len(paths)
        assert all(body["held"] for _, body in answers)
        assert len({body["token"] for _, body in answers}) == len(paths)
        store = stores["default"]
        with Client.from_url(store["URL"], namespace=store["NAMESPACE"]) as client:
            assert client.holds() == []


@SQLITE
def test_workers_that_are_forked_from_a_holder(site: Site, stores: dict[str, Any]) -> None:
    """The master's lock stays its own, and ends with it; each worker has a connection of its own."""
    store = stores["default"]
    with Client.from_url(store["URL"], namespace=store["NAMESPACE"]) as client:
        with serving(site, "wsgi", DJ_LEASEHOLD=stores, DJ_HELD_BY_MASTER="yes") as port:
            with ThreadPoolExecutor(6) as pool:
                answers = list(pool.map(lambda _: answer(port, "sell/"), range(40)))
            assert {status for status, _ in answers} == {200}
            info = client.inspect("of the master")
            assert info is not None
            assert info.holders[0].pid not in {body["pid"] for _, body in answers}
        assert client.inspect("of the master") is None, "released when the master ended"


@pytest.mark.parametrize("kind", ["wsgi", "asgi"])
@SQLITE
def test_a_store_that_is_killed_and_comes_back(site: Site, kind: str) -> None:
    with RedisServer() as server:
        stores = {"default": {"URL": server.url, "RESPONSE_TIMEOUT": 1.0}}
        with serving(site, kind, 1, DJ_LEASEHOLD=stores) as port:
            assert {answer(port, path)[0] for path in ("sell/", "asell/")} == {200}
            server.kill()
            assert {answer(port, path)[0] for path in ("sell/", "asell/")} == {500}  # StoreUnavailable
            server.start()
            for path in ("sell/", "asell/"):
                until(lambda path=path: answer(port, path)[0] == 200, 20)


@SQLITE
def test_a_command_runs_in_one_process(site: Site, stores: dict[str, Any]) -> None:
    assert site.manage("migrate", "--no-lock").returncode == 0
    with site.started(command("nightly", "--takes", "60"), DJ_LEASEHOLD=stores) as (first,):
        assert first.stdout is not None
        assert first.stdout.readline() == "began\n"
        done = site.manage("nightly", DJ_LEASEHOLD=stores)
        assert done.returncode == 0
        assert "'command:nightly' runs in another process (" in done.stderr
        listed = site.manage("leasehold", "ls", "--json", DJ_LEASEHOLD=stores)
        assert [each["name"] for each in json.loads(listed.stdout)] == ["command:nightly"]
    assert len(site.query("SELECT by FROM shop_run WHERE by LIKE 'nightly%'")) == 1


@SQLITE
def test_a_cron_job_of_each_container_runs_once(site: Site, stores: dict[str, Any]) -> None:
    assert site.manage("migrate", "--no-lock").returncode == 0
    with site.started(*[command("cron")] * 4, DJ_LEASEHOLD=stores) as children:
        assert [ended(child)[0] for child in children] == [0] * 4
    assert site.manage("cron", DJ_LEASEHOLD=stores).returncode == 0, "a late one"
    assert len(site.query("SELECT by FROM shop_run WHERE by LIKE 'nightly%'")) == 1


@pytest.mark.parametrize("system", ["sqlite"])
def test_a_command_without_its_store_does_not_run(system: str, tmp_path: Path) -> None:
    with made(system, None, tmp_path) as site:
        assert site.manage("migrate", "--no-lock").returncode == 0
        stores = {"default": {"URL": f"redis://127.0.0.1:{free_port()}", "RESPONSE_TIMEOUT": 1.0}}
        for name in ("nightly", "cron"):
            done = site.manage(name, DJ_LEASEHOLD=stores)
            assert done.returncode == 69, done.stderr
            assert "did not run" in done.stderr
        assert site.query("SELECT by FROM shop_run WHERE by LIKE 'nightly%'") == []


@pytest.mark.parametrize("system", ["postgresql", "mysql"])
def test_a_store_in_djangos_database(site: Site) -> None:
    """The password and the address are Django's; the tables are those of the migration."""
    env = {"DJ_LEASEHOLD": {"default": {"DATABASE": "default"}}, "DJ_APPS": [APP, TABLES]}
    assert site.manage("migrate", **env).returncode == 0
    with serving(site, "asgi", **env) as port:
        assert {answer(port, path)[0] for path in ("sell/", "asell/", "bridged/")} == {200}
    done = site.manage("leasehold", "doctor", "--fail-on", "error", **env)
    assert done.returncode == 0, done.stdout + done.stderr


WITHOUT_CLICK = """
import sys
sys.modules["click"] = None
from django.core.management import execute_from_command_line
execute_from_command_line(["manage.py", *sys.argv[1:]])
"""


@SQLITE
def test_without_click_the_command_names_the_install_line_and_the_checks_run(site: Site) -> None:
    env = site.environment(DJ_LEASEHOLD={"default": {"URL": f"redis://127.0.0.1:{free_port()}"}})

    def managed(*arguments: str) -> tuple[int, str]:
        started = [sys.executable, "-c", WITHOUT_CLICK, *arguments]
        done = subprocess.run(started, env=env, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stderr

    code, said = managed("leasehold", "ls", "--json")
    assert (code, said.count("\n")) == (3, 1), said
    assert "manage.py leasehold: click is not installed; install it with: pip install 'leasehold[cli]'" in said
    code, said = managed("check", "--deploy", "--tag", "leasehold")
    assert code == 1
    assert "(leasehold.E002) LEASEHOLD['default']: cannot connect to Redis" in said
