"""Locks of other libraries on a Redis server are named by ``ls``, ``show`` and ``doctor``, keys of our own never."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import redis
import redis_lock
from click.testing import CliRunner, Result
from shells import Shell

from leasehold import Client
from leasehold.cli import main
from leasehold.stores.redis.doctor import foreign
from leasehold_lab.servers import RedisServer

OWNER = "6b7b6e8c-7ad5-4e0c-a2ae-18cd1f5b2b60:37"
SHOWN = "6b7b6e8c…:37"


@pytest.fixture
def server(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_server.url) as client:
        yield client


def call(*arguments: str, url: str) -> Result:
    result = CliRunner().invoke(main, [*arguments, "--url", url], prog_name="leasehold")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture
def locks_of_others(server: redis.Redis, namespace: str) -> Iterator[dict[str, str]]:
    """Return the description of each, by its key."""
    lock, rw, permits, plain = (f"{namespace}:{kind}" for kind in ("lock", "rw", "permits", "lock:plain"))
    server.hset(lock, OWNER, 1)
    server.hset(rw, mapping={"mode": "write", f"{OWNER}:write": 1})
    server.set(permits, 2)
    server.zadd(f"{{{permits}}}:timeout", {secrets.token_bytes(16): 2e12})
    assert server.lock(plain, timeout=60).acquire()
    signalled = redis_lock.Lock(server, f"{namespace}:signalled", expire=60)
    assert signalled.acquire()
    for key in (lock, rw):
        server.pexpire(key, 60_000)
    yield {
        lock: f"'{lock}' is a Redisson lock, held by {SHOWN} for another ",
        rw: f"'{rw}' is a Redisson read-write lock, held by {SHOWN} for another ",
        f"{{{permits}}}:timeout": f"'{permits}' is a Redisson semaphore, of which permits are out; to share it, ",
        plain: f"'{plain}' looks like a plain lock, as of redis-py, redlock-py, redsync or node-redlock, held for ano",
        f"lock:{namespace}:signalled": f"'{namespace}:signalled' looks like a lock of python-redis-lock, held for",
    }
    signalled.release()
    server.delete(lock, rw, permits, f"{{{permits}}}:timeout", plain)


def test_ls_names_them(redis_server: RedisServer, namespace: str, locks_of_others: dict[str, str]) -> None:
    result = call("ls", namespace, url=redis_server.url)
    named = [text for key, text in locks_of_others.items() if namespace in key and not key.startswith("{")]
    assert len(result.stderr.splitlines()) == 1 + len(named)
    for text in named:
        assert text in result.stderr
    assert result.stdout == ""
    assert json.loads(call("ls", namespace, "--json", url=redis_server.url).stdout) == []


def test_show_names_one(redis_server: RedisServer, namespace: str, locks_of_others: dict[str, str]) -> None:
    for key, text in locks_of_others.items():
        result = call("show", key, url=redis_server.url)
        assert result.exit_code == 1
        assert text in result.stderr
        assert result.stderr.count("\n") == 1
    in_namespace = call("show", "lock", "--namespace", namespace, url=redis_server.url)
    assert f"'{namespace}:lock' is a Redisson lock" in in_namespace.stderr


def test_a_lock_of_python_redis_lock_is_found_by_its_name(
    redis_server: RedisServer, namespace: str, locks_of_others: dict[str, str]
) -> None:
    text = locks_of_others[f"lock:{namespace}:signalled"]
    for arguments in (
        ("show", f"{namespace}:signalled"),
        ("show", "signalled", "--namespace", namespace),
        ("ls", f"{namespace}:sig"),
        ("ls", "sig", "--namespace", namespace),
    ):
        assert text in call(*arguments, url=redis_server.url).stderr, arguments


def test_a_namespace_is_encoded_as_in_the_key(redis_server: RedisServer, server: redis.Redis, namespace: str) -> None:
    server.set(f"{namespace}%3Aa:x", secrets.token_hex(16), px=60_000)
    shown = call("show", "x", "--namespace", f"{namespace}:a", url=redis_server.url).stderr
    assert f"'{namespace}%3Aa:x' looks like a plain lock" in shown


def test_doctor_names_some(
    redis_server: RedisServer, locks_of_others: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign, "SHOWN", 1000)  # other tests have left locks on this server
    found = json.loads(call("doctor", "--json", "--fail-on", "error", url=redis_server.url).stdout)["findings"]
    (note,) = [one for one in found if one["subject"] == foreign.SUBJECT]
    assert note["severity"] == "note"
    for text in locks_of_others.values():
        assert text in note["found"]
    shared = json.loads(call("doctor", "--json", url=f"{redis_server.url}?layout=redisson").stdout)["findings"]
    assert foreign.SUBJECT not in {one["subject"] for one in shared}


def test_a_value_that_frees_a_lock_is_never_shown(
    redis_server: RedisServer, server: redis.Redis, namespace: str, locks_of_others: dict[str, str]
) -> None:
    value = server.get(f"{namespace}:lock:plain").decode()
    for arguments in (("ls",), ("ls", namespace), ("show", f"{namespace}:lock:plain"), ("doctor",)):
        assert value not in call(*arguments, url=redis_server.url).output


@pytest.mark.parametrize(
    ("key", "listed"),
    [
        ("session:7f3ab1", False),
        ("clock:7", False),
        ("blocked-7", False),
        ("orders:7:lock", True),
        ("Locks/7", True),
        ("stockLock7", True),
        ("redlock:stock", True),
        ("job_mutex", True),
    ],
)
def test_a_random_value_is_listed_only_where_the_key_calls_itself_a_lock(
    redis_server: RedisServer, server: redis.Redis, namespace: str, key: str, listed: bool
) -> None:
    whole = f"{namespace}:{key}"
    server.set(whole, secrets.token_hex(16), px=60_000)
    for arguments in (("ls", namespace), ("doctor",)):
        output = call(*arguments, url=redis_server.url).output
        assert not (whole in output and not listed)
    assert (whole in call("ls", namespace, url=redis_server.url).output) is listed
    assert f"'{whole}' looks like a plain lock" in call("show", whole, url=redis_server.url).stderr
    server.delete(whole)


def test_a_lock_that_ends_while_it_is_looked_at_is_not_shown_as_held(
    redis_server: RedisServer, locks_of_others: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = foreign._ask

    async def ends(transport: object, commands: Sequence[tuple[bytes, ...]]) -> Sequence[object]:
        if commands and commands[0][0] == b"PTTL":
            return [-2] * len(commands)
        return await ask(transport, commands)

    monkeypatch.setattr(foreign, "_ask", ends)
    for key in locks_of_others:
        assert "held" not in call("show", key, url=redis_server.url).output


def test_show_names_a_semaphore(redis_server: RedisServer, server: redis.Redis, namespace: str) -> None:
    for name, permits in ((f"{namespace}:s", f"{{{namespace}:s}}:timeout"), (f"{{{namespace}}}s",) * 2):
        server.set(name, 2)
        key = permits if permits != name else f"{name}:timeout"
        server.zadd(key, {secrets.token_bytes(16): 2e12})
        shown = call("show", name, url=redis_server.url).stderr
        assert f"'{name}' is a Redisson semaphore, of which permits are out; to share it, " in shown
        server.delete(name, key)


def test_our_own_keys_and_other_data_are_no_locks_of_others(
    redis_server: RedisServer, server: redis.Redis, namespace: str
) -> None:
    values = "7", "x" * 32, "a b", secrets.token_urlsafe(99), "x" * 24
    other = {f"{namespace}:{number}": value for number, value in enumerate(values)}
    server.mset(other)
    server.hset(f"{namespace}:hash", mapping={"mode": "read", "name": "x"})
    server.zadd(f"{{{namespace}}}:timeout", {"job": 1})
    server.rpush(f"{namespace}:list", OWNER)
    with (
        Client.from_url(redis_server.url, namespace=namespace) as locks,
        locks.lock("a"),
        locks.lock("b", fair=True),
        locks.rw_lock("c").reader(),
        locks.semaphore("d", 3),
    ):
        locks.latch("e", 2).count_down()
        for prefix in ("", namespace):
            texts = call("ls", prefix, url=redis_server.url).stderr
            assert not [line for line in texts.splitlines() if line.startswith((f"'{namespace}", "'leasehold"))]
    server.delete(*other, f"{namespace}:hash", f"{{{namespace}}}:timeout", f"{namespace}:list")


@pytest.mark.parametrize("lease", [None, 60], ids=["without an end", "for a minute"])
def test_a_lock_of_another_library_that_is_shared_is_shown_and_not_broken(
    redis_server: RedisServer, server: redis.Redis, namespace: str, tmp_path: Path, lease: float | None
) -> None:
    name, url = f"{namespace}:shared", f"{redis_server.url}?layout=plain"
    with Client.from_url(url) as ours, ours.lock(name):
        pass  # so that `ls` knows the name
    assert server.lock(name, timeout=lease).acquire()
    shown = call("show", name, url=url)
    assert "held by another program, no token, client " in shown.stdout
    assert (", no end" in shown.stdout) is (lease is None)
    assert ("remaining" in shown.stdout) is (lease is not None)
    (listed,) = [line for line in call("ls", name, url=url).stdout.splitlines() if line.startswith(name)]
    assert listed.split()[1:4] == ["-", "another", "program"]
    assert ("no end" in listed) is (lease is None)
    for command in ("show", "ls"):
        text = call(command, name, "--json", url=url).stdout
        json.loads(text, parse_constant=pytest.fail)
        assert ('"remaining": null' in text) is (lease is None)
    code, _, complaint = Shell(url, tmp_path).call("run", name, "--no-wait", "--", "true")
    assert code == 75
    assert "held by another program " in complaint
    assert ("with no end (no token)" in complaint) is (lease is None)
    for arguments in ((), ("--yes",), ("--json",)):
        kept = call("break", name, *arguments, url=url)
        assert kept.exit_code == 65
        assert "held by another program" in kept.stderr
    assert server.exists(name)
    server.delete(name)


def test_a_large_server_is_looked_at_in_part(
    redis_server: RedisServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign, "MOST", 2 * foreign.AT_ONCE)
    before = int(
        redis_server.command("INFO", "commandstats").partition("cmdstat_scan:calls=")[2].partition(",")[0] or 0
    )
    call("ls", f"{namespace}nothing", url=redis_server.url)
    after = int(redis_server.command("INFO", "commandstats").partition("cmdstat_scan:calls=")[2].partition(",")[0])
    assert after - before <= 3
