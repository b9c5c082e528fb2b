"""Requests that a connected server refuses: what the error says, in both flavors."""

from __future__ import annotations

import threading
import time

import pytest

from leasehold import Client, StoreUnavailable
from leasehold.stores.redis.connection.base import NOT_APPLIED, REMEDIES, ReplyError, refused
from leasehold_lab.runtimes.harnesses import AsyncioHarness, BlockingHarness
from leasehold_lab.servers import RedisServer
from leasehold_lab.servers.base import free_port
from leasehold_lab.servers.redis.resp import RedisError
from support.stores.redis.refusals import refusal


def of_store(server: RedisServer) -> StoreUnavailable:
    error = refusal(BlockingHarness(), server.url)
    assert isinstance(error, StoreUnavailable)
    assert refusal(AsyncioHarness(), server.url).args == error.args
    return error


def provoke_oom(server: RedisServer) -> StoreUnavailable:
    server.command("CONFIG", "SET", "maxmemory", "100kb")
    return of_store(server)


def provoke_noreplicas(server: RedisServer) -> StoreUnavailable:
    server.command("CONFIG", "SET", "min-replicas-to-write", "1")
    return of_store(server)


def provoke_misconf(server: RedisServer) -> StoreUnavailable:
    for path in [*server.folder.glob("data/*"), server.folder / "data"]:
        path.unlink() if path.is_file() else path.rmdir()
    server.command("CONFIG", "SET", "save", "3600 1")
    server.command("BGSAVE")
    while "rdb_last_bgsave_status:err" not in str(server.command("INFO", "persistence")):
        time.sleep(0.02)
    return of_store(server)


def provoke_busy(server: RedisServer) -> StoreUnavailable:
    server.command("CONFIG", "SET", "busy-reply-threshold", "1")
    spinner = server.connect()

    def spin() -> None:
        with pytest.raises(RedisError, match="killed"):
            spinner.command("EVAL", "while true do end", "0")

    spinning = threading.Thread(target=spin)
    spinning.start()
    time.sleep(0.2)
    try:
        return of_store(server)
    finally:
        server.command("SCRIPT", "KILL")
        spinning.join()
        spinner.close()


def provoke_loading(server: RedisServer) -> StoreUnavailable:
    server.command("DEBUG", "POPULATE", "20000")
    server.command("CONFIG", "SET", "loading-process-events-interval-bytes", "1024")
    server.command("CONFIG", "SET", "key-load-delay", "100")
    loader = server.connect()
    loading = threading.Thread(target=lambda: loader.command("DEBUG", "RELOAD"))
    loading.start()
    time.sleep(0.3)
    try:
        return of_store(server)
    finally:
        server.command("CONFIG", "SET", "key-load-delay", "0")
        loading.join()
        loader.close()


def demoted(server: RedisServer, stale: str) -> StoreUnavailable:
    """Make a replica of a server to which a client is connected."""
    server.command("CONFIG", "SET", "replica-serve-stale-data", stale)
    with Client.from_url(server.url) as locks:
        with locks.lock("x"):
            pass
        server.command("REPLICAOF", "127.0.0.1", str(free_port()))
        with pytest.raises(StoreUnavailable) as caught:
            locks.lock("x").acquire(timeout=3)
    return caught.value


def provoke_wrongtype(server: RedisServer) -> StoreUnavailable:
    server.command("SET", "leasehold:{default:x}:lock", "something else")
    return of_store(server)


def provoke_noperm(server: RedisServer) -> StoreUnavailable:
    server.command("ACL", "SETUSER", "admin", "on", "nopass", "+@all", "~*", "&*")
    server.command("ACL", "SETUSER", "default", "-evalsha")
    return of_store(server)


PROVOKED = {
    "OOM": provoke_oom,
    "NOREPLICAS": provoke_noreplicas,
    "MISCONF": provoke_misconf,
    "BUSY": provoke_busy,
    "LOADING": provoke_loading,
    "READONLY": lambda server: demoted(server, "yes"),
    "MASTERDOWN": lambda server: demoted(server, "no"),
    "WRONGTYPE": provoke_wrongtype,
    "NOPERM": provoke_noperm,
}


@pytest.mark.parametrize("code", PROVOKED)
def test_an_error_of_a_server_says_that_nothing_was_done_and_what_to_do(code: str) -> None:
    config = {"repl-timeout": "1"}
    server = RedisServer(config=config)
    if code == "MISCONF":
        (server.folder / "data").mkdir()
        server._config["dir"] = str(server.folder / "data")
    with server:
        error = PROVOKED[code](server)
        assert not error.unknown
        assert REMEDIES[code] in str(error)


def test_every_row_of_the_table_has_a_remedy_and_all_else_is_unknown() -> None:
    assert set(REMEDIES) == NOT_APPLIED
    listed = {"READONLY", "NOREPLICAS", "OOM", "MISCONF", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "MOVED", "ASK"}
    assert listed | {"TRYAGAIN", "CROSSSLOT", "NOSCRIPT", "NOPERM", "NOAUTH", "BUSY"} <= NOT_APPLIED
    for code in NOT_APPLIED:
        assert not refused("x", ReplyError(f"{code} because")).unknown
    for text in ("ERR something new", "UNBLOCKED force unblock", "ERR no idea", "EXECABORT"):
        assert refused("x", ReplyError(text)).unknown
    denied = "ERR ACL failure in script: User app has no permissions to run the 'get' command script: ab, on @x:1."
    assert ReplyError(denied).code == "NOPERM"  # as 7.0.16 and later say it
    old = "ERR Error running script (call to f_1): @user_script:1: The user executing the script can't run this command"
    assert ReplyError(old).code == "NOPERM"  # as 6.2 says it
