"""The installed drivers have the names that leasehold uses and that their makers do not promise to keep.

A driver may rename what begins with an underscore in any release. Then the test of that name fails here, at once and
without a server, and the page in docs/decisions says what the name is for. `PRIVATE` is complete: a name with an
underscore that leasehold uses on an object of somebody else, and that is missing here, fails the last test.
"""

from __future__ import annotations

import ast
import asyncio
import asyncio.trsock
import importlib
import inspect
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import h11
import hiredis
import psycopg.conninfo
import psycopg.pq
import psycopg_pool
import pytest
import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.sentinel
import redis.cluster
import redis.sentinel
import sqlalchemy

import leasehold

pymysql: Any = importlib.import_module("pymysql")
asyncmy_connection: Any = importlib.import_module("asyncmy.connection")
asyncmy_pool: Any = importlib.import_module("asyncmy.pool")
kazoo_client: Any = importlib.import_module("kazoo.client")
kazoo_connection: Any = importlib.import_module("kazoo.protocol.connection")
kazoo_threading: Any = importlib.import_module("kazoo.handlers.threading")
hazelcast_modules: Any = importlib.import_module("leasehold.stores.hazelcast.connection.modules")
kazoo_requests: Any = importlib.import_module("kazoo.protocol.serialization")

DECISIONS = Path(__file__).parents[2] / "docs" / "decisions"


@dataclass(frozen=True, slots=True)
class Uses:
    """What leasehold uses of one object of a driver.

    Attributes:
        of: the object, for the test's name.
        page: the page in docs/decisions that says what the names are for.
        make: makes the object; it connects to nothing.
        names: the names, separated by spaces.
        arguments: for each name that is called: the number of arguments.

    """

    of: str
    page: str
    make: Callable[[], Any]
    names: str
    arguments: dict[str, int]


def uses(of: str, page: str, make: Callable[[], Any], names: str, **arguments: int) -> Uses:
    return Uses(of, f"{page}.md", make, names, arguments)


def sync_nodes() -> Any:
    with mock.patch.object(redis.cluster.NodesManager, "initialize"):  # it connects
        return redis.cluster.NodesManager([redis.cluster.ClusterNode("localhost", 7000)])


def quiet_redis() -> Any:
    """Return what has `MaintNotificationsConfig`: a module that redis-py 5 and 6 do without."""
    if int(redis.__version__.partition(".")[0]) < 7:
        return SimpleNamespace(MaintNotificationsConfig=None)
    return importlib.import_module("redis.maint_notifications")


def asyncmy_protocol() -> Any:
    async def make() -> Any:
        return asyncmy_connection._MySQLProtocol(asyncio.get_running_loop())

    return asyncio.run(make())


def asyncmy_client() -> Any:
    async def make() -> Any:
        return asyncmy_connection.Connection(host="localhost", user="app")  # without a loop it would make one

    return asyncio.run(make())


def asyncio_socket() -> Any:
    with socket.socket() as plain:
        return asyncio.trsock.TransportSocket(plain)


def hazelcast_client() -> Any:
    client_class = hazelcast_modules.hazelcast.HazelcastClient
    with mock.patch.object(client_class, "_start"):  # it connects
        client = client_class()
    client._reactor._loop.waker.close()
    return client


def hazelcast_codec(name: str) -> Callable[[], Any]:
    return lambda: hazelcast_modules.module(f"protocol.codec.{name}_codec")


PRIVATE = [
    uses("redis.Connection", "redis", redis.Connection, "_sock"),
    uses("redis.SSLConnection", "redis", redis.SSLConnection, "_sock"),
    uses("redis.UnixDomainSocketConnection", "redis", redis.UnixDomainSocketConnection, "_sock"),
    uses("redis.asyncio.Connection", "redis", redis.asyncio.Connection, "_reader _writer"),
    uses(
        "pymysql.Connection", "mysql", lambda: pymysql.connections.Connection(defer_connect=True),
        "_auth_plugin_map _execute_command _force_close _read_packet _read_timeout _result _rfile _secure _sock "
        "_ssl_required _write_timeout", _execute_command=2, _force_close=0, _read_packet=0,
    ),
    uses(
        "asyncmy.Connection", "mysql", asyncmy_client,
        "_auth_plugin_map _charset _db _host _password _password_creator _port _proto _result _server_public_key _sock "
        "_ssl_context _stream_broken _transport _unix_socket _user",
    ),
    uses("asyncmy.Pool", "mysql", lambda: asyncmy_pool.Pool, "_conn_kwargs"),
    uses("asyncio.TransportSocket", "mysql", asyncio_socket, "_sock"),
    uses("sqlalchemy.Pool", "mysql", lambda: sqlalchemy.pool.Pool, "_create_connection", _create_connection=1),
    uses("kazoo.KazooClient", "zookeeper", kazoo_client.KazooClient, "_call _connection _session_id", _call=2),
    uses(
        "kazoo.ConnectionHandler", "zookeeper", lambda: kazoo_client.KazooClient()._connection,
        "_connect _read_sock _socket _write_sock", _connect=3,
    ),
    uses("hazelcast.HazelcastClient", "hazelcast", hazelcast_client,
         "_connection_manager _invocation_service _reactor"),
    uses("hazelcast.AsyncoreReactor", "hazelcast", lambda: hazelcast_client()._reactor, "_loop"),
    uses("hazelcast.PipedWaker", "hazelcast", lambda: hazelcast_client()._reactor._loop.waker, "_read_fd _write_fd"),
]  # fmt: skip
"""Names that begin with an underscore."""

UNDOCUMENTED = [
    uses("redis.Connection", "redis", redis.Connection, "connect disconnect", connect=0, disconnect=0),
    uses("redis.asyncio.Connection", "redis", redis.asyncio.Connection, "connect", connect=0),
    uses("redis.ConnectionPool", "redis", redis.ConnectionPool, "connection_class connection_kwargs"),
    uses("redis.asyncio.ConnectionPool", "redis", redis.asyncio.ConnectionPool, "connection_class connection_kwargs"),
    uses("redis.Sentinel", "redis", lambda: redis.sentinel.Sentinel([("localhost", 1)]), "connection_kwargs sentinels"),
    uses(
        "redis.SentinelConnectionPool", "redis",
        lambda: redis.sentinel.Sentinel([("localhost", 1)]).master_for("main").connection_pool,
        "connection_class connection_kwargs is_master sentinel_manager service_name",
    ),
    uses(
        "redis.asyncio.SentinelConnectionPool", "redis",
        lambda: redis.asyncio.sentinel.Sentinel([("localhost", 1)]).master_for("main").connection_pool,
        "connection_class connection_kwargs is_master sentinel_manager service_name",
    ),
    uses("redis.NodesManager", "redis", sync_nodes, "nodes_cache startup_nodes address_remap"),
    uses("redis.ClusterNode", "redis", lambda: redis.cluster.ClusterNode("h", 1), "host port redis_connection"),
    uses(
        "redis.asyncio.RedisCluster", "redis", lambda: redis.asyncio.cluster.RedisCluster(host="localhost"),
        "connection_kwargs nodes_manager",
    ),
    uses(
        "redis.asyncio.NodesManager", "redis",
        lambda: redis.asyncio.cluster.RedisCluster(host="localhost").nodes_manager,
        "nodes_cache startup_nodes address_remap",
    ),
    uses("redis", "redis", quiet_redis, "MaintNotificationsConfig"),
    uses("psycopg_pool.ConnectionPool", "postgresql", lambda: psycopg_pool.ConnectionPool("", open=False),
         "conninfo kwargs"),
    uses(
        "psycopg.pq.PGconn", "postgresql", lambda: psycopg.pq.PGconn,
        "backend_pid connect_poll connect_start consume_input enter_pipeline_mode finish flush get_error_message "
        "get_result is_busy nonblocking notice_handler notifies pipeline_sync send_prepare send_query_params "
        "send_query_prepared socket ssl_in_use status",
    ),
    uses("psycopg.pq.PGresult", "postgresql", lambda: psycopg.pq.PGresult,
         "error_field ftype get_error_message get_value nfields ntuples status"),
    uses("psycopg.pq.Conninfo", "postgresql", lambda: psycopg.pq.Conninfo, "get_defaults"),
    uses("pymysql.Connection", "mysql", lambda: pymysql.connections.Connection(defer_connect=True),
         "bind_address charset client_flag connect ctx db host next_result open password port query server_public_key "
         "unix_socket user", query=1, next_result=0),
    uses("pymysql.MySQLResult", "mysql", lambda: pymysql.connections.MySQLResult(None), "has_next rows"),
    uses("asyncmy.Connection", "mysql", asyncmy_client,
         "close connected ensure_closed next_result query"),
    uses("sqlalchemy.util", "mysql", lambda: importlib.import_module("sqlalchemy.util"), "greenlet_spawn",
         greenlet_spawn=2),
    uses("asyncmy.MySQLResult", "mysql", lambda: asyncmy_connection.MySQLResult, "has_next rows"),
    uses("asyncmy.MySQLProtocol", "mysql", asyncmy_protocol, "length pos"),
    uses("kazoo.KazooClient", "zookeeper", kazoo_client.KazooClient,
         "add_listener client_state close command handler last_zxid start_async stop", add_listener=1, command=1),
    uses("kazoo.ConnectionHandler", "zookeeper", lambda: kazoo_client.KazooClient()._connection, "connection_stopped"),
    uses("kazoo.SequentialThreadingHandler", "zookeeper", kazoo_threading.SequentialThreadingHandler,
         "async_result create_connection spawn stop", async_result=0, create_connection=1, spawn=1),
    uses("kazoo.AsyncResult", "zookeeper", lambda: kazoo_threading.SequentialThreadingHandler().async_result(),
         "exception rawlink successful value", rawlink=1),
    uses("kazoo.protocol.connection", "zookeeper", lambda: kazoo_connection, "AuthFailedError PURESASL_AVAILABLE"),
    uses("kazoo.protocol.serialization", "zookeeper", lambda: kazoo_requests,
         "CheckVersion Create Create2 Delete Exists GetACL GetChildren GetChildren2 GetData SetData Sync Transaction",
         CheckVersion=2, Create=4, Create2=4, Delete=2, Exists=2, GetACL=1, GetChildren=2, GetChildren2=2, GetData=2,
         SetData=3, Sync=1, Transaction=1),
    uses("hazelcast.ConnectionManager", "hazelcast", lambda: hazelcast_client()._connection_manager,
         "active_connections get_random_connection initialized_on_cluster", get_random_connection=0,
         initialized_on_cluster=0),
    uses("hazelcast.AsyncoreConnection", "hazelcast", lambda: hazelcast_modules.module("reactor").AsyncoreConnection,
         "close_connection", close_connection=3),
    uses("hazelcast.InvocationService", "hazelcast", lambda: hazelcast_client()._invocation_service,
         "invoke", invoke=1),
    uses("hazelcast.AsyncoreReactor", "hazelcast", lambda: hazelcast_client()._reactor, "add_timer map",
         add_timer=2),
    uses("hazelcast.AsyncoreLoop", "hazelcast", lambda: hazelcast_client()._reactor._loop, "waker"),
    uses("hazelcast.invocation", "hazelcast", lambda: hazelcast_modules.module("invocation"), "Invocation",
         Invocation=1),
    uses("hazelcast.Future", "hazelcast", lambda: hazelcast_modules.module("future").Future(),
         "add_done_callback done exception is_success result", add_done_callback=1),
    *(
        uses(f"hazelcast.{codec}", "hazelcast", hazelcast_codec(codec), "encode_request decode_response",
             encode_request=count)
        for codec, count in (
            ("fenced_lock_lock", 5), ("fenced_lock_try_lock", 6), ("fenced_lock_unlock", 5),
            ("fenced_lock_get_lock_ownership", 2), ("cp_session_create_session", 2), ("cp_session_close_session", 2),
            ("cp_group_create_cp_group", 1),
        )
    ),
    uses("hazelcast.cp_session_heartbeat_session", "hazelcast", hazelcast_codec("cp_session_heartbeat_session"),
         "encode_request", encode_request=2),
]  # fmt: skip
"""Names without an underscore that the driver's documentation does not describe, or describes as its inside."""

DOCUMENTED = [
    uses("hiredis", "redis", lambda: hiredis, "ProtocolError PushNotification Reader"),
    uses("hiredis.Reader", "redis", lambda: hiredis.Reader(replyError=Exception, protocolError=Exception), "feed gets"),
    uses("h11", "etcd", lambda: h11, "CLIENT CLOSED Connection ConnectionClosed DONE Data EndOfMessage MUST_CLOSE "
         "NEED_DATA PAUSED RemoteProtocolError Request Response"),
    uses("h11.Connection", "etcd", lambda: h11.Connection(h11.CLIENT),
         "next_event our_state receive_data send start_next_cycle their_state"),
    uses("hazelcast.HazelcastClient", "hazelcast", hazelcast_client,
         "cluster_service lifecycle_service shutdown"),
    uses("hazelcast.Config", "hazelcast", lambda: hazelcast_modules.module("config").Config(),
         "async_start backup_ack_to_client_enabled client_name cluster_connect_timeout cluster_members cluster_name "
         "connection_timeout creds_password creds_username heartbeat_interval heartbeat_timeout lifecycle_listeners "
         "retry_initial_backoff retry_max_backoff ssl_cafile ssl_certfile ssl_check_hostname ssl_enabled ssl_keyfile"),
    uses("psycopg.conninfo", "postgresql", lambda: psycopg.conninfo, "conninfo_to_dict make_conninfo"),
]  # fmt: skip
"""Documented names: they are here so that one test shows all that a new release of a driver may take away."""


def split(used: Uses) -> list[str]:
    return used.names.split()


def names(tables: list[Uses]) -> list[Any]:
    return [pytest.param(used, name, id=f"{used.of}.{name}") for used in tables for name in split(used)]


@pytest.mark.parametrize(("used", "name"), names([*PRIVATE, *UNDOCUMENTED, *DOCUMENTED]))
def test_the_installed_driver_has_the_name(used: Uses, name: str) -> None:
    found = used.make()
    assert hasattr(found, name), f"{used.of} has no {name} any more; see docs/decisions/{used.page}"
    if name in used.arguments:
        inspect.signature(getattr(found, name)).bind(*[None] * used.arguments[name])


@pytest.mark.parametrize(("used", "name"), names(PRIVATE))
def test_the_page_of_the_decision_names_each_private_name(used: Uses, name: str) -> None:
    assert f"`{name}`" in (DECISIONS / used.page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", ["redis.md", "postgresql.md", "mysql.md", "zookeeper.md", "etcd.md", "hazelcast.md"])
def test_the_index_of_decisions_counts_the_private_names_of_each_page(page: str) -> None:
    of_drivers = {(used.of.partition(".")[0], name) for used in PRIVATE if used.page == page for name in split(used)}
    (row,) = [
        line for line in (DECISIONS / "README.md").read_text(encoding="utf-8").splitlines() if f"({page})" in line
    ]
    assert row.split("|")[-3].strip() == str(len(of_drivers))


def test_what_is_called_without_await_is_no_coroutine_function() -> None:
    assert not inspect.iscoroutinefunction(asyncmy_connection.Connection.close)


def test_a_replaced_method_of_kazoo_is_the_one_that_kazoo_calls() -> None:
    """leasehold puts its own `_connect`, `create_connection` and `spawn` in the place of kazoo's."""
    calls = inspect.getsource(kazoo_connection)
    assert "self._connect(" in calls
    assert "handler.create_connection(" in calls
    assert "handler.spawn(" in calls


def test_each_underscored_name_of_others_is_in_the_table() -> None:
    """Look for ``object._name`` in the whole package, where no class or module of leasehold defines ``_name``."""
    ours, used = set[str](), dict[str, str]()
    for path in Path(leasehold.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                ours.add(node.name)
                ours |= {
                    each.target.id
                    for each in node.body
                    if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
                }
            elif isinstance(node, ast.Attribute) and _is_private(node.attr):
                if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
                    used.setdefault(node.attr, f"{path}:{node.lineno}")
                elif isinstance(node.ctx, ast.Store):
                    ours.add(node.attr)
    known = {name for each in PRIVATE for name in split(each)}
    assert known & used.keys() - ours, "the search finds nothing"
    missing = {name: where for name, where in used.items() if name not in known | ours | OF_PYTHON}
    assert missing == {}


OF_PYTHON = {
    "_exit", "_fields", "_getframe", "_get_running_loop", "_meta", "_register_task", "_replace", "_unregister_task"
}  # fmt: skip
"""Names of the standard library and of Django's models that are documented, or have been there for decades."""


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")
