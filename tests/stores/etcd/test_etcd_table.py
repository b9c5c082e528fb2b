"""Every row of etcd's table of errors, as a real server reports it, and whether the request was carried out.

Three a server says only for a moment, as it starts, ends, or has thousands of requests to apply: there a text stands
for the server, so that their meaning is tested, and not that etcd spells them so.
"""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from leasehold.stores.etcd.connection import errors
from leasehold.stores.etcd.connection.errors import TABLE, Meaning, read
from leasehold.stores.etcd.connection.gateway import NEEDS_LEADER
from leasehold.stores.etcd.http.base import Reply
from leasehold_lab.servers import EtcdCluster, EtcdServer
from leasehold_lab.servers.base import find_program

Provoked = Callable[[pytest.FixtureRequest], errors.Refused]

PUT, KEY = "/v3/kv/put", base64.b64encode(b"mark").decode()

PASSWORD = "s3cret"


@pytest.fixture(scope="module")
def server(outlive: set[int]) -> Iterator[EtcdServer]:
    with EtcdServer() as running:
        outlive.add(running.pid)
        yield running


@pytest.fixture(scope="module")
def guarded(outlive: set[int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """One with users, whose tokens say at which revision of the users they were given."""
    folder = tmp_path_factory.mktemp("keys")
    openssl = find_program(("openssl",), "openssl")
    private, public = folder / "private.pem", folder / "public.pem"
    for words in (
        ("genrsa", "-out", str(private), "2048"),
        ("rsa", "-in", str(private), "-pubout", "-out", str(public)),
    ):
        subprocess.run([openssl, *words], check=True, capture_output=True)
    token = f"jwt,pub-key={public},priv-key={private},sign-method=RS256,ttl=1m"
    with EtcdServer(config={"auth-token": token, "bcrypt-cost": "4"}) as running:
        outlive.add(running.pid)
        running.enable_auth(PASSWORD, {"other": ["elsewhere/"]}, {"stranger": (PASSWORD, "other")})
        yield running


@pytest.fixture(scope="module")
def cluster(outlive: set[int]) -> Iterator[EtcdCluster]:
    with EtcdCluster() as running:
        outlive.update(member.pid for member in running.members)
        yield running


def asked(server: EtcdServer, path: str, body: Mapping[str, Any], *, token: str = "", within: float = 10.0) -> Any:
    """Send a request as we do, and return what the table makes of the answer."""
    connection = server._connection()
    connection.timeout = within
    with contextlib.closing(connection):
        headers = dict((NEEDS_LEADER, *([("Authorization", token)] if token else [])))
        connection.request("POST", path, json.dumps(body), headers)
        reply = connection.getresponse()
        return read(Reply(reply.status, reply.read()))


def token_of(server: EtcdServer, user: str) -> str:
    said = server.ask("/v3/auth/authenticate", {"name": user, "password": PASSWORD})
    return str(said["token"])


# --- how each is provoked ----------------------------------------------------------------------------------------


def plain(path: str, body: Mapping[str, Any]) -> Provoked:
    return lambda request: asked(request.getfixturevalue("server"), path, body)


def under_alarm(kind: str) -> Provoked:
    def provoke(request: pytest.FixtureRequest) -> errors.Refused:
        server: EtcdServer = request.getfixturevalue("server")
        member = server.ask("/v3/maintenance/status", {})["header"]["member_id"]
        alarm = {"memberID": member, "alarm": kind}
        server.ask("/v3/maintenance/alarm", {"action": "ACTIVATE", **alarm})
        try:
            return asked(server, PUT, {"key": KEY})
        finally:
            server.ask("/v3/maintenance/alarm", {"action": "DEACTIVATE", **alarm})

    return provoke


def compacted(request: pytest.FixtureRequest) -> errors.Refused:
    server: EtcdServer = request.getfixturevalue("server")
    for _ in range(2):
        server.ask(PUT, {"key": base64.b64encode(b"other").decode()})
    server.compact()
    return asked(server, "/v3/kv/range", {"key": KEY, "revision": "1"})


def granted_twice(request: pytest.FixtureRequest) -> errors.Refused:
    server: EtcdServer = request.getfixturevalue("server")
    server.ask("/v3/lease/grant", {"TTL": "5", "ID": "4711"})
    try:
        return asked(server, "/v3/lease/grant", {"TTL": "5", "ID": "4711"})
    finally:
        server.ask("/v3/lease/revoke", {"ID": "4711"})


def learner(request: pytest.FixtureRequest) -> errors.Refused:
    """A member that only learns takes no writes."""
    with EtcdServer() as first:
        second = EtcdServer(config={"initial-cluster-state": "existing"})
        first.ctl("member", "add", second.name, "--learner", f"--peer-urls=http://127.0.0.1:{second.peer_port}")
        second.joins((first, second))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(EtcdServer, "_ready", lambda self: bool(self.ask("/v3/maintenance/status", {})))
            second.start()
        try:
            return asked(second, PUT, {"key": KEY})
        finally:
            second.stop()


def with_users(user: str = "", path: str = PUT, **body: str) -> Provoked:
    def provoke(request: pytest.FixtureRequest) -> errors.Refused:
        server: EtcdServer = request.getfixturevalue("guarded")
        return asked(server, path, body or {"key": KEY}, token=token_of(server, user) if user else "")

    return provoke


def wrong_token(request: pytest.FixtureRequest) -> errors.Refused:
    return asked(request.getfixturevalue("guarded"), PUT, {"key": KEY}, token="nonsense.1")


def old_token(request: pytest.FixtureRequest) -> errors.Refused:
    """The users were changed after the token was issued."""
    server: EtcdServer = request.getfixturevalue("guarded")
    token = token_of(server, "root")
    server.ctl("role", "add", "late")
    return asked(server, PUT, {"key": KEY}, token=token)


def not_leader(request: pytest.FixtureRequest) -> errors.Refused:
    """Ask another than the leader to hand the lead on."""
    cluster: EtcdCluster = request.getfixturevalue("cluster")
    leader = cluster.leader()
    other = next(member for member in cluster.members if member is not leader)
    itself = other.ask("/v3/maintenance/status", {})["header"]["member_id"]
    return asked(other, "/v3/maintenance/transfer-leadership", {"targetID": itself})


def threads(members: Iterable[EtcdServer]) -> list[Path]:
    return [path for member in members for path in Path(f"/proc/{member.pid}/task").glob("*/stat")]


@contextlib.contextmanager
def stopped(*members: EtcdServer) -> Iterator[None]:
    for member in members:
        member.pause()
    while not all(state.read_text().rpartition(")")[2].split()[0] == "T" for state in threads(members)):
        time.sleep(0.001)
    try:
        yield
    finally:
        for member in members:
            member.resume()


def leader_stops(request: pytest.FixtureRequest) -> errors.Refused:
    """No member confirms the proposal; the others elect a new leader, sometimes before the request arrives."""
    cluster: EtcdCluster = request.getfixturevalue("cluster")
    until = time.monotonic() + 20
    while time.monotonic() < until:
        leader = cluster.leader()
        other = next(member for member in cluster.members if member is not leader)
        with stopped(leader):
            said = asked(other, "/v3/kv/range", {"key": KEY})
        if isinstance(said, errors.Refused):
            return said
    raise AssertionError("each time another leader was there at once")


def followers_stop(request: pytest.FixtureRequest) -> errors.Refused:
    """The leader waits for a majority. What it was asked to do may be done when that comes back."""
    cluster: EtcdCluster = request.getfixturevalue("cluster")
    leader = cluster.leader()
    with stopped(*(member for member in cluster.members if member is not leader)):
        return asked(leader, "/v3/kv/deleterange", {"key": KEY})


def no_majority(request: pytest.FixtureRequest) -> errors.Refused:
    """The leader has noticed that it is one no more."""
    cluster: EtcdCluster = request.getfixturevalue("cluster")
    leader = cluster.leader()
    with stopped(*(member for member in cluster.members if member is not leader)):
        until = time.monotonic() + 10
        while True:
            assert time.monotonic() < until
            with contextlib.suppress(TimeoutError):
                if isinstance(asked(leader, "/v3/kv/range", {"key": KEY}, within=0.3), errors.Refused):
                    break
        return asked(leader, PUT, {"key": KEY})


def told(words: str) -> Provoked:
    def provoke(_: pytest.FixtureRequest) -> errors.Refused:
        said = {"error": f"etcdserver: {words}", "message": f"etcdserver: {words}", "code": 14}
        refused = read(Reply(503, json.dumps(said).encode()))
        assert isinstance(refused, errors.Refused)
        return refused

    return provoke


PROVOKED: dict[str, Provoked] = {
    "no leader": no_majority,
    "not leader": not_leader,
    "not supported for learner": learner,
    "too many requests": told("too many requests"),
    "not capable": told("not capable"),
    "database space exceeded": under_alarm("NOSPACE"),
    "corrupt cluster": under_alarm("CORRUPT"),
    "permission denied": with_users("stranger"),
    "authentication failed": with_users(path="/v3/auth/authenticate", name="stranger", password="wr0ng"),
    "authentication is not enabled": plain("/v3/auth/authenticate", {"name": "a", "password": "b"}),
    "user name is empty": with_users(),
    "user name not found": with_users("root", "/v3/auth/user/get", name="nobody"),
    "invalid auth token": wrong_token,
    "revision of auth store is old": old_token,
    "requested lease not found": plain(PUT, {"key": KEY, "lease": "77"}),
    "lease already exists": granted_twice,
    "required revision has been compacted": compacted,
    "request is too large": plain(PUT, {"key": KEY, "value": "A" * 2_200_000}),
    "message larger than max": plain(PUT, {"key": KEY, "value": "A" * 4_000_000}),
    "too many operations in txn": plain("/v3/kv/txn", {"success": [{"request_put": {"key": KEY}}] * 129}),
    "leader changed": leader_stops,
    "request timed out": followers_stop,
    "server stopped": told("server stopped"),
}


def test_every_row_is_provoked() -> None:
    assert PROVOKED.keys() == {row.words for row in TABLE}


@pytest.mark.usefixtures("server", "guarded", "cluster")
@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.words)
def test_every_error_is_classified_and_has_a_remedy(row: errors.Fault, request: pytest.FixtureRequest) -> None:
    said = PROVOKED[row.words](request)
    assert isinstance(said, errors.Refused), said
    assert row.words in said.text
    assert said.fault is row
    error = said.unavailable("here")
    assert error.unknown is (row.meaning is Meaning.UNKNOWN)
    assert error.lasting is (row.meaning is Meaning.LASTING)
    assert row.remedy in str(error)
    assert "wr0ng" not in str(error)
    server: EtcdServer = request.getfixturevalue("server")
    guarded: EtcdServer = request.getfixturevalue("guarded")
    cluster: EtcdCluster = request.getfixturevalue("cluster")
    assert server.keys("mark") == []
    assert guarded.ctl("get", "mark") == ""
    assert cluster.leader().keys("mark") == []
