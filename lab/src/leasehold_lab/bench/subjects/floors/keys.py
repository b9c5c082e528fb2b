"""The floor of etcd: a transaction that puts a key unless it is there, and one that deletes it, over bare HTTP."""

from __future__ import annotations

import http.client
import json
import threading
from base64 import b64encode
from typing import Any

from leasehold._url import parse
from leasehold.stores.etcd.connection.settings import from_url
from leasehold_lab.bench.subjects.base import Scope, Turn


class Gateway:
    """A kept connection to the first member."""

    def __init__(self, url: str) -> None:
        settings = from_url(parse(url))
        place = settings.endpoints[0]
        self.root = settings.root
        self._line = http.client.HTTPConnection(place.host, place.port, timeout=30)
        self._headers = {"Content-Type": "application/json"}
        if settings.username:
            said = self.ask("auth/authenticate", {"name": settings.username, "password": settings.password.reveal()})
            self._headers["Authorization"] = said["token"]

    def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return its answer."""
        return self.send(path, json.dumps(body).encode())

    def send(self, path: str, body: bytes) -> dict[str, Any]:
        """Send a request whose body is ready."""
        self._line.request("POST", f"/v3/{path}", body, self._headers)
        reply = self._line.getresponse()
        text = reply.read()
        if reply.status != 200:
            raise RuntimeError(f"etcd answered {path} with status {reply.status}: {text.decode(errors='replace')}")
        found: dict[str, Any] = json.loads(text)
        return found

    def version(self) -> str:
        """Ask for the server's version."""
        self._line.request("GET", "/version")
        return str(json.loads(self._line.getresponse().read())["etcdserver"])

    def delete(self, start: str) -> None:
        """Delete all keys that begin so."""
        after = start[:-1] + chr(ord(start[-1]) + 1)
        self.ask("kv/deleterange", {"key": spelled(start), "range_end": spelled(after)})

    def close(self) -> None:
        """Close the connection."""
        self._line.close()


class Blocking:
    """See `leasehold_lab.bench.subjects.base.Session`. Each thread has a connection."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._mine = threading.local()
        self._gateways: list[Gateway] = []

    def turn(self, name: str) -> Turn:
        gateway = self._gateway()
        send, key = gateway.send, spelled(f"{gateway.root}/{self._scope.namespace}/{name}")
        absent = {"key": key, "target": "CREATE", "result": "EQUAL", "create_revision": 0}
        put = {"request_put": {"key": key, "value": spelled("me")}}
        taking = json.dumps({"compare": [absent], "success": [put]}).encode()
        present = {**absent, "result": "GREATER"}
        drop = {"request_delete_range": {"key": key}}
        leaving = json.dumps({"compare": [present], "success": [drop]}).encode()

        def leave() -> None:
            if not send("kv/txn", leaving).get("succeeded"):
                raise RuntimeError("the floor released what it did not hold")

        return lambda: bool(send("kv/txn", taking).get("succeeded")), leave

    def refused(self, name: str) -> bool:
        return not self.turn(name)[0]()

    def close(self) -> None:
        for gateway in self._gateways:
            gateway.close()

    def _gateway(self) -> Gateway:
        gateway: Gateway | None = getattr(self._mine, "gateway", None)
        if gateway is None:
            gateway = self._mine.gateway = Gateway(self._scope.url)
            self._gateways.append(gateway)
        return gateway


def spelled(text: str) -> str:
    """Return a key or value as the gateway wants it."""
    return b64encode(text.encode()).decode()


blocking = Blocking
