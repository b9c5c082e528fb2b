"""Errors that a real server reports in these states, and whether the request was carried out."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from leasehold import Client, StoreUnavailable, Unsupported
from leasehold._model import Change
from leasehold._runtimes.base import finish
from leasehold.stores.etcd.connection import errors
from leasehold.stores.etcd.connection.errors import TABLE, Meaning, classify, read
from leasehold.stores.etcd.http.base import Reply
from leasehold_lab.servers import EtcdCluster, EtcdServer


def refusal(work, *words: str, lasting: bool = False, unknown: bool = False) -> StoreUnavailable:
    with pytest.raises(StoreUnavailable) as failed:
        work()
    for word in words:
        assert word in str(failed.value)
    assert failed.value.lasting is lasting
    assert failed.value.unknown is unknown
    return failed.value


# --- a database that is full -------------------------------------------------------------------------------------


def test_a_full_database_refuses_acquires_and_still_renews_and_releases():
    config = {"quota-backend-bytes": str(16 * 1024 * 1024)}
    with EtcdServer(config=config) as server, Client.from_url(server.url) as locks:
        hold = locks.lock("x", lease=2.0).acquire()
        fixed = locks.lock("y", renew=False).acquire()
        for written in range(60):  # noqa: B007
            try:
                server.ask("/v3/kv/put", {"key": "YQ==", "value": "A" * 1_000_000})
            except RuntimeError:
                break
        assert written > 5
        error = refusal(lambda: locks.lock("z").acquire(timeout=1), "database space exceeded", "alarm disarm")
        assert not error.lasting
        time.sleep(2.5)  # renewals
        hold.raise_if_lost()
        (alarm,) = [finding for finding in locks.diagnose() if finding.subject == "alarms"]
        assert alarm.found == "NOSPACE"
        assert hold.release() is True
        assert fixed.release() is True
        assert server.keys("leasehold/") == []
        server.compact()
        server.ctl("defrag")
        server.ctl("alarm", "disarm")
        with locks.lock("z", timeout=5):
            pass


# --- no leader, too slow -----------------------------------------------------------------------------------------


def test_a_cluster_without_a_majority():
    """Two of three are dead: an acquire says so in time, and nothing was left; then it goes on."""
    with EtcdCluster() as cluster, Client.from_url(cluster.url, response_timeout=2.0) as locks:
        with locks.lock("x"):
            pass
        dead = cluster.members[:2]
        for member in dead:
            member.kill()
        time.sleep(1.5)  # the third notices
        start = time.monotonic()
        error = refusal(lambda: locks.lock("x").acquire(), "no leader")
        assert time.monotonic() - start < 2.0 + 1.0
        assert not error.unknown
        (finding,) = [one for one in cluster_findings(locks) if "no leader" in one]
        assert finding
        with pytest.raises(StoreUnavailable):
            finish(locks.store.compare_and_set("c", Change(b"v")))
        for member in dead:
            member.start()
        cluster.leader()
        with locks.lock("x", timeout=10):
            pass


def cluster_findings(locks: Client) -> list[str]:
    try:
        return [finding.found for finding in locks.diagnose()]
    except StoreUnavailable as error:
        return [str(error)]


def test_a_stopped_member_means_an_unknown_outcome(etcd_server, namespace):
    """Stopped in its tracks: the request may be carried out when it goes on."""
    with EtcdServer() as server, Client.from_url(server.url, response_timeout=0.5) as locks:
        with locks.lock("warm"):
            pass
        server.pause()
        time.sleep(0.2)  # all its threads have stopped
        refusal(lambda: locks.lock("x").acquire(timeout=0.3), "answered too slowly", unknown=True)
        server.resume()
        locks.lock("x").acquire(timeout=10).release()


def test_a_server_that_shuts_down_cleanly():
    """A SIGTERM ends requests and watches with errors of their own; waiters continue when the member is back."""
    with EtcdServer() as server, Client.from_url(server.url) as locks:
        hold = locks.lock("x", lease=20.0).acquire()
        got = []
        thread = threading.Thread(target=lambda: got.append(locks.lock("x", lease=20.0).acquire(timeout=30)))
        thread.start()
        while len(server.keys("leasehold/")) < 2:
            time.sleep(0.01)
        server._process.send_signal(signal.SIGTERM)
        server._process.wait(10)
        server._process = None
        server.start()
        hold.release()
        thread.join()
        got[0].release()


# --- what is not an etcd that can be used ------------------------------------------------------------------------


def test_a_gateway_that_is_switched_off():
    with EtcdServer(config={"enable-grpc-gateway": "false"}) as server, Client.from_url(server.url) as locks:
        refusal(lambda: locks.lock("x").acquire(), "enable-grpc-gateway", lasting=True)


def test_an_http_server_that_is_not_etcd(tmp_path):
    import http.server

    handler = http.server.BaseHTTPRequestHandler
    handler.log_message = lambda *args: None
    server = http.server.HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        with Client.from_url(f"etcd://127.0.0.1:{server.server_port}") as locks:
            refusal(lambda: locks.lock("x").acquire(), "is not etcd", lasting=True)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_an_etcd_that_is_too_old():
    import http.server

    class Old(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = b'{"etcdserver":"3.3.27","etcdcluster":"3.3.0"}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Old)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        where = f"etcd://127.0.0.1:{server.server_port}"
        with Client.from_url(where) as locks, pytest.raises(Unsupported, match=r"etcd 3\.3\.27.*3\.4"):
            locks.lock("x").acquire()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


# --- the table ---------------------------------------------------------------------------------------------------


def said(server: EtcdServer, path: str, body: dict) -> Meaning:
    """Return what the table makes of a real error answer."""
    connection = server._connection()
    try:
        import json

        connection.request("POST", path, json.dumps(body))
        reply = connection.getresponse()
        answer = read(Reply(reply.status, reply.read()))
    finally:
        connection.close()
    assert isinstance(answer, errors.Refused)
    return answer.meaning


@pytest.mark.parametrize(
    ("path", "body", "meaning"),
    [
        ("/v3/lease/revoke", {"ID": "77"}, Meaning.LEASE),
        ("/v3/kv/put", {"key": "YQ==", "lease": "77"}, Meaning.LEASE),
        ("/v3/kv/put", {"key": "YQ==", "value": "A" * 2_400_000}, Meaning.LASTING),
        ("/v3/kv/put", {"key": "YQ==", "value": "A" * 4_000_000}, Meaning.LASTING),
        ("/v3/kv/txn", {"success": [{"request_range": {"key": "YQ=="}}] * 129}, Meaning.LASTING),
        ("/v3/kv/range", {"key": "YQ==", "revision": "1"}, Meaning.COMPACTED),
        ("/v3/auth/authenticate", {"name": "a", "password": "b"}, Meaning.LASTING),
        ("/v3/nothing", {}, Meaning.LASTING),
        ("/v3/kv/put", {"key": 7}, Meaning.UNKNOWN),
    ],
    ids=["revoke", "put", "large", "huge", "many", "compacted", "no auth", "no such path", "nonsense"],
)
def test_errors_of_a_server_are_classified(etcd_server, path, body, meaning):
    etcd_server.ask("/v3/kv/put", {"key": "YQ=="})
    etcd_server.ask("/v3/kv/put", {"key": "YQ=="})
    if meaning is Meaning.COMPACTED:
        etcd_server.compact()
    assert said(etcd_server, path, body) is meaning


def test_an_existing_lease_is_classified(etcd_server):
    etcd_server.ask("/v3/lease/grant", {"TTL": "5", "ID": "4711"})
    assert said(etcd_server, "/v3/lease/grant", {"TTL": "5", "ID": "4711"}) is Meaning.EXISTS
    etcd_server.ask("/v3/lease/revoke", {"ID": "4711"})


def test_an_unknown_request_is_not_taken_for_a_missing_lease():
    for status, words in ((404, "Not Found"), (405, "Method Not Allowed"), (501, "Not Implemented")):  # as from 3.5 on
        assert errors.refusal(None, words, status).meaning is Meaning.LASTING
    assert errors.refusal(None, "etcdserver: requested lease not found", 404).meaning is Meaning.LEASE


def test_every_row_matches_and_has_a_remedy():
    for row in TABLE:
        assert classify(f"etcdserver: {row.words}, more").fault is row
        assert row.remedy or row.meaning is not Meaning.LASTING
    assert classify("etcdserver: something new").meaning is Meaning.UNKNOWN
