"""The servers that tests start: they answer, keep or lose their data on command, and end with their parent process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from leasehold_lab.servers import MariaDBServer, MissingServer, PgBouncerServer, PostgresServer, RedisServer
from leasehold_lab.servers.redis.resp import RedisError


def test_it_answers_and_counts_commands(redis_server: RedisServer) -> None:
    redis_server.reset_stats()
    redis_server.command("GET", "nothing")
    redis_server.command("GET", "nothing")
    assert redis_server.commandstats()["get"] == 2
    assert redis_server.version.split()[0] in ("redis-server", "valkey-server")


def test_a_restart_keeps_or_loses_data_on_the_same_port() -> None:
    with RedisServer() as server:
        port = server.port
        server.command("SET", "key", "value")
        server.restart()
        assert server.command("GET", "key") == "value"
        server.restart(keep_data=False)
        assert server.command("GET", "key") is None
        assert server.port == port


def test_an_append_only_file_survives_a_crash() -> None:
    with RedisServer(append_only=True) as server:
        server.command("SET", "key", "value")
        server.kill()
        assert not server.running
        server.start()
        assert server.command("GET", "key") == "value"


def test_a_paused_server_keeps_connections_and_does_not_reply() -> None:
    with RedisServer() as server:
        connection = server.connect()
        connection.socket.settimeout(0.2)
        server.pause()
        with pytest.raises(TimeoutError):
            connection.command("PING")
        server.resume()
        connection.close()
        assert server.command("PING") == "PONG"


def test_passwords_and_users() -> None:
    with RedisServer(password="se cret#1", users=["app on >word ~* &* +@all -config"]) as server:
        assert "se%20cret%231" in server.url
        app = server.connect("app", "word")
        assert app.command("ACL", "WHOAMI") == "app"
        with pytest.raises(RedisError, match="NOPERM"):
            app.command("CONFIG", "GET", "port")
        app.close()
        with pytest.raises(RedisError, match="WRONGPASS"):
            server.connect("app", "wrong")


def test_tls_and_a_unix_socket() -> None:
    with RedisServer(tls=True, unix_socket=True) as server:
        assert server.url.startswith("rediss://")
        assert server.command("PING") == "PONG"
        assert server.unix_path is not None
        assert os.path.exists(server.unix_path)


def test_settings_are_passed_on() -> None:
    with RedisServer(maxmemory="8mb", config={"maxmemory-policy": "allkeys-lru"}) as server:
        assert server.command("CONFIG", "GET", "maxmemory") == ["maxmemory", "8388608"]
        assert server.command("CONFIG", "GET", "maxmemory-policy") == ["maxmemory-policy", "allkeys-lru"]


def test_a_bad_setting_is_reported_with_the_log() -> None:
    server = RedisServer(config={"no-such-setting": "1"})
    with pytest.raises(RuntimeError, match="no-such-setting"):
        server.start()
    server.stop()


def test_a_missing_program_names_its_package() -> None:
    with pytest.raises(MissingServer, match="apt-get install redis-server"):
        RedisServer(binary="no-such-server")


def test_it_outlives_the_thread_that_started_it() -> None:
    server = RedisServer()
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    time.sleep(0.1)
    assert server.command("PING") == "PONG"
    server.stop()
    assert not server.folder.exists()


@pytest.mark.parametrize("paused", [False, True])
def test_it_dies_with_a_parent_that_is_killed(paused: bool) -> None:
    code = "from leasehold_lab.servers import *; import time; s = RedisServer().start(); print(s.pid, flush=True);"
    code += f"{'s.pause();' if paused else ''} time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    until = time.monotonic() + 5
    while is_alive(pid):
        assert time.monotonic() < until, f"server {pid} outlives its parent"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_mariadb_runs_unprivileged_and_keeps_its_data_over_a_crash() -> None:
    with MariaDBServer(password="se'c\\ret") as server:
        assert os.stat(f"/proc/{server.pid}").st_uid != 0
        server.query("CREATE TABLE kept (x INT)")
        server.query("INSERT INTO kept VALUES (%s)", 7)
        port = server.port
        server.restart()
        assert server.query("SELECT x FROM kept") == [(7,)]
        assert server.port == port
        link = server.connect("app", "se'c\\ret")
        assert len(server.sessions()) == 1
        assert server.end_sessions() == 1
        assert server.sessions() == []
        link.close()
        assert server.statements()["select"] >= 1


def test_a_postgres_server_keeps_its_data_over_restarts_and_is_ended_with_all_its_processes() -> None:
    with PostgresServer(password="it's") as server, PgBouncerServer(PostgresServer().start()) as pooler:
        server.execute("CREATE TABLE kept (n INTEGER); INSERT INTO kept VALUES (42)")
        server.restart()
        server.restart(crash=True)
        assert server.query("SELECT n FROM kept") == [(42,)]
        server.configure(work_mem="8MB")
        assert server.query("SHOW work_mem") == [("8MB",)]
        pids = server._process_ids()
        assert len(pids) > 3
        assert pooler.version.startswith("pgbouncer 1.")
        assert server.version.startswith("postgres ")
        pooler.server.stop()
    assert [pid for pid in pids if os.path.exists(f"/proc/{pid}")] == []
