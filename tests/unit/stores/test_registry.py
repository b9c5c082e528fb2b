"""From a URL to a store: schemes of others by entry point, missing drivers, and where locks are kept by default."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio

from leasehold import AsyncClient, Client, MissingDriver
from leasehold.stores import registry

THEIRS = """
from leasehold.stores.memory import Memory

def from_url(url):
    url.refuse_options()
    return Memory("theirs/" + url.path)
"""


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a package that names a scheme, as pip would leave it."""
    (tmp_path / "their_store.py").write_text(THEIRS, encoding="utf-8")
    about = tmp_path / "their_store-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: their-store\nVersion: 1.0\n", encoding="utf-8")
    (about / "entry_points.txt").write_text("[leasehold.stores]\ntheirs = their_store:from_url\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("third_party")
def test_an_entry_point_adds_a_scheme() -> None:
    with Client.from_url("theirs:a") as one, Client.from_url("theirs:a") as two, Client.from_url("theirs:b") as other:
        with one.lock("x") as hold:
            assert two.lock("x").acquire(blocking=False) is None
            assert other.lock("x").acquire(blocking=False) is not None
        assert hold.token > 0


@pytest.mark.usefixtures("third_party")
def test_an_unknown_scheme_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ValueError, match=r"unknown scheme 'thiers'.*known are: .*redis.*theirs"):
        Client.from_url("thiers:a")


@pytest.mark.parametrize("driver", ["redis", "hiredis"])
def test_a_missing_driver_names_the_line_that_installs_it(driver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [
        name for name in sys.modules if name.startswith(("leasehold.stores.redis", "leasehold.stores.redis.connection"))
    ]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, driver, None)  # as if it were not installed
    with pytest.raises(MissingDriver, match=r"pip install 'leasehold\[redis\]'"):
        Client.from_url("redis://localhost")


@pytest.mark.parametrize("scheme", ["mysql", "mariadb"])
@pytest.mark.parametrize(("flavor", "driver"), [(Client, "pymysql"), (AsyncClient, "asyncmy")])
def test_a_missing_driver_of_mysql_is_named_when_the_client_is_made(
    flavor: type[Client] | type[AsyncClient], driver: str, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("blocking", "aio"):
        monkeypatch.delitem(sys.modules, f"leasehold.stores.mysql.connection.{module}", raising=False)
    monkeypatch.setitem(sys.modules, driver, None)  # as if it were not installed
    with pytest.raises(MissingDriver, match=rf"'{driver}' is not installed.*pip install 'leasehold\[mysql\]'"):
        flavor.from_url(f"{scheme}://app@localhost/orders")


def test_each_flavor_of_mysql_needs_its_own_driver_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncmy", None)
    with Client.from_url("mysql://app@localhost/orders") as locks:
        assert "orders" in repr(locks)


@pytest.mark.parametrize(
    ("made", "impl"),
    [
        pytest.param("", "c", id="without the C module"),
        pytest.param(
            "import ctypes.util, sys; ctypes.util.find_library = lambda name: None; "
            "sys.modules |= {'psycopg_c': None, 'psycopg_binary': None}; ",
            "",
            id="without any libpq",
        ),
    ],
)
@pytest.mark.parametrize("flavor", ["Client", "AsyncClient"])
def test_a_psycopg_that_finds_no_libpq_is_a_missing_driver(flavor: str, made: str, impl: str) -> None:
    code = f"{made}import leasehold, sys\nleasehold.{flavor}.from_url(sys.argv[1])"  # since 3.13, tracebacks show it
    command = [sys.executable, "-c", code, "postgresql://app:geheim@localhost/orders"]
    done = subprocess.run(command, env={**os.environ, "PSYCOPG_IMPL": impl}, capture_output=True, text=True)
    assert "leasehold.errors.MissingDriver: psycopg finds no libpq" in done.stderr
    assert "pip install 'leasehold[postgres]'" in done.stderr
    assert "libpq5" in done.stderr
    assert "geheim" not in done.stderr


def test_another_import_error_of_a_driver_is_raised_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(module: str) -> Any:
        raise ImportError("cannot import name 'x' from 'h11'", name="h11")

    monkeypatch.setattr(registry, "import_module", breaks)
    with pytest.raises(ImportError, match="cannot import name") as caught:
        Client.from_url("etcd://localhost")
    assert not isinstance(caught.value, MissingDriver)


def test_without_a_url_the_environment_decides_and_else_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEASEHOLD_URL", "memory:from-the-environment")
    with Client.from_url() as locks:
        assert "from-the-environment" in repr(locks)
    monkeypatch.delenv("LEASEHOLD_URL")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with Client.from_url() as locks, locks.lock("x"):
        assert registry.default_path() == tmp_path / "leasehold" / "locks.db"
        assert registry.default_path().exists()


def test_a_client_object_of_a_driver_selects_the_store() -> None:
    for locks in (
        Client.from_client(redis.Redis(port=1, db=7)),
        AsyncClient.from_client(redis.asyncio.Redis(port=1, db=7)),
    ):
        assert "localhost:1" in repr(locks)
        assert repr(locks).startswith(f"<{type(locks).__name__} ")
