"""An etcd server for tests, alone or as one of a cluster."""

from __future__ import annotations

import base64
import concurrent.futures
import http.client
import json
import re
import ssl
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Self, cast

from leasehold_lab.servers.base import READY_WITHIN, Server, find_program, free_port
from leasehold_lab.servers.certificates import Certificates

ANSWER_WITHIN = 10.0
"""Seconds that the server may take to answer a request."""


class EtcdError(RuntimeError):
    """An error answer of the server."""


class EtcdServer(Server):
    """One member, which is a cluster by itself unless `EtcdCluster` made it.

    Its timers are short, so that a lease can be as short as one second. Nothing is synced to the disk. Data still
    survive a `kill`, since only the process ends, not the machine.

    Args:
        tls: speak TLS and nothing else to clients; `certificates` has the files.
        client_certificates: with ``tls``, refuse clients without a certificate.
        config: further command line options, by name, as ``{"quota-backend-bytes": "16777216"}``.
        heartbeat: milliseconds between a leader's heartbeats; after ten missed ones, followers elect another leader.
        binary: the program; without it ``etcd``.

    """

    programs = ("etcd",)
    package = "etcd-server"

    def __init__(
        self,
        *,
        tls: bool = False,
        client_certificates: bool = False,
        config: Mapping[str, str] | None = None,
        heartbeat: int = 50,
        binary: str | None = None,
    ) -> None:
        super().__init__(binary)
        self.peer_port = free_port()
        self.name = f"m{self.port}"
        self.certificates = Certificates.make(self.folder) if tls else None
        self._peers: tuple[EtcdServer, ...] = (self,)
        self._root: tuple[str, str] | None = None
        self._options = {
            "heartbeat-interval": str(heartbeat),
            "election-timeout": str(10 * heartbeat),
            "unsafe-no-fsync": "true",
            **({"client-cert-auth": "true"} if client_certificates else {}),
            **(config or {}),
        }

    @property
    def url(self) -> str:
        """The URL without a user; for TLS without options, see `certificates`."""
        return f"{'etcds' if self.certificates else 'etcd'}://127.0.0.1:{self.port}"

    @property
    def version(self) -> str:
        """The program and its version, for example ``etcd 3.4.23``."""
        return version_of(self.binary)

    def restart(self, **options: str) -> None:
        """End and start it on the same ports with its data; options are added to those it has."""
        self.kill()
        self._options |= {name.replace("_", "-"): value for name, value in options.items()}
        self.start()

    def ask(self, path: str, body: Mapping[str, Any] | None = None, *, token: str = "") -> dict[str, Any]:
        """Send a request to the gateway; without a body it is a GET.

        Raises:
            EtcdError: it answered with an error.

        """
        connection = self._connection()
        try:
            content = None if body is None else json.dumps(body)
            headers = {"Authorization": token} if token else {}
            connection.request("GET" if body is None else "POST", path, content, headers)
            reply = connection.getresponse()
            data = reply.read()
        except http.client.HTTPException as error:
            raise OSError(str(error)) from error
        finally:
            connection.close()
        if reply.status != 200:
            raise EtcdError(data.decode("utf-8", "replace").strip())
        said = cast(dict[str, Any], json.loads(data))
        return cast(dict[str, Any], said.get("result", said))

    def ctl(self, *words: str, check: bool = True) -> str:
        """Run ``etcdctl`` and return what it prints."""
        done = subprocess.run(
            self.ctl_command(*words), env=CTL_ENV, capture_output=True, text=True, timeout=30, check=False
        )
        if check and done.returncode:
            raise EtcdError(done.stderr.strip() or done.stdout.strip())
        return done.stdout

    def ctl_command(self, *words: str) -> list[str]:
        """Return the command line of ``etcdctl`` for this server. Run it with the environment `CTL_ENV`."""
        command = [find_program(("etcdctl",), "etcd-client"), f"--endpoints={self._http_url}"]
        if self.certificates is not None:
            command += [
                f"--cacert={self.certificates.authority}",
                f"--cert={self.certificates.client}",
                f"--key={self.certificates.client_key}",
            ]
        if self._root is not None:
            command += [f"--user={':'.join(self._root)}"]
        return [*command, *words]

    def enable_auth(self, root: str, roles: Mapping[str, Sequence[str]], users: Mapping[str, tuple[str, str]]) -> None:
        """Require a user and a password for each request.

        Args:
            root: the administrator's password.
            roles: for each role the prefixes of keys that it may read and write.
            users: for each user a password and a role.

        """
        self.ctl("user", "add", f"root:{root}")
        self.ctl("user", "grant-role", "root", "root")
        for role, prefixes in roles.items():
            self.ctl("role", "add", role)
            for prefix in prefixes:
                self.ctl("role", "grant-permission", role, "--prefix=true", "readwrite", prefix)
        for user, (password, role) in users.items():
            self.ctl("user", "add", f"{user}:{password}")
            self.ctl("user", "grant-role", user, role)
        self.ctl("auth", "enable")
        self._root = ("root", root)

    def keys(self, prefix: str = "") -> list[str]:
        """Return all keys with a prefix, in their order."""
        start = prefix.encode() or b"\0"
        end = start[:-1] + bytes([start[-1] + 1]) if prefix else b"\0"
        body = {"key": _b64(start), "range_end": _b64(end), "keys_only": True}
        kvs = self.ask("/v3/kv/range", body).get("kvs", [])
        return [base64.b64decode(kv["key"]).decode() for kv in kvs]

    def leases(self) -> list[int]:
        """Return the ids of all leases."""
        return [int(lease["ID"]) for lease in self.ask("/v3/lease/leases", {}).get("leases", [])]

    def calls(self) -> dict[str, int]:
        """Return how often each method was called since the start, by its gRPC name, from the server's metrics."""
        connection = self._connection()
        try:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        finally:
            connection.close()
        pattern = r'^grpc_server_started_total\{grpc_method="(\w+)".*\} (\S+)$'
        calls = Counter[str]()
        for method, count in re.findall(pattern, text, re.MULTILINE):
            calls[method] += int(float(count))
        return calls

    def entries(self) -> int:
        """Return how many entries of the Raft log this member has applied."""
        return int(self.ask("/v3/maintenance/status", {})["raftAppliedIndex"])

    def is_leader(self) -> bool:
        """Return whether it leads its cluster."""
        said = self.ask("/v3/maintenance/status", {})
        return bool(said.get("leader", "0") == said["header"]["member_id"])

    def compact(self) -> None:
        """Forget all history, as an administrator does now and then."""
        revision = self.ask("/v3/kv/range", {"key": _b64(b"\0")})["header"]["revision"]
        self.ask("/v3/kv/compaction", {"revision": revision, "physical": True})

    @property
    def _http_url(self) -> str:
        return f"{'https' if self.certificates else 'http'}://127.0.0.1:{self.port}"

    def _connection(self) -> http.client.HTTPConnection:
        if self.certificates is None:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_WITHIN)
        context = ssl.create_default_context(cafile=str(self.certificates.authority))
        context.load_cert_chain(self.certificates.client, self.certificates.client_key)
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=ANSWER_WITHIN, context=context)

    def _arguments(self) -> Sequence[str]:
        peer = f"http://127.0.0.1:{self.peer_port}"
        options = {
            "name": self.name,
            "data-dir": str(self.folder / "data"),
            "listen-client-urls": self._http_url,
            "advertise-client-urls": self._http_url,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": ",".join(f"{one.name}=http://127.0.0.1:{one.peer_port}" for one in self._peers),
            "logger": "zap",
            "log-level": "warn",
            **self._options,
        }
        if self.certificates is not None:
            options["trusted-ca-file"] = str(self.certificates.authority)
            options["cert-file"] = str(self.certificates.server)
            options["key-file"] = str(self.certificates.server_key)
        return [f"--{name}={value}" for name, value in options.items()]

    def _ready(self) -> bool:
        try:
            return self.ask("/health").get("health") == "true"
        except EtcdError:
            return False

    def joins(self, peers: Sequence[EtcdServer]) -> None:
        """Make it a member of a cluster that has not been started."""
        self._peers = tuple(peers)


class EtcdCluster:
    """Several members that elect a leader. Each of `members` can be killed, paused and started by itself."""

    def __init__(self, count: int = 3, *, heartbeat: int = 50, config: Mapping[str, str] | None = None) -> None:
        self.members = [EtcdServer(heartbeat=heartbeat, config=config) for _ in range(count)]
        for member in self.members:
            member.joins(self.members)

    @property
    def url(self) -> str:
        """The URL with all members."""
        return "etcd://" + ",".join(f"127.0.0.1:{member.port}" for member in self.members)

    def start(self) -> Self:
        """Start all members, and wait until they have a leader."""
        try:
            with concurrent.futures.ThreadPoolExecutor(len(self.members)) as threads:
                list(threads.map(EtcdServer.start, self.members))  # a single member never becomes ready
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End all members and remove their files."""
        for member in self.members:
            member.stop()

    def leader(self) -> EtcdServer:
        """Return the member that leads, waiting for an election."""
        until = time.monotonic() + READY_WITHIN
        while time.monotonic() < until:
            for member in self.members:
                try:
                    if member.running and member.is_leader():
                        return member
                except (OSError, EtcdError):
                    continue
            time.sleep(0.02)
        raise RuntimeError("the cluster has no leader")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()


CTL_ENV = {"ETCDCTL_API": "3", "PATH": "/usr/bin:/bin:/usr/local/bin"}
"""The environment in which ``etcdctl`` is run."""


@cache
def version_of(binary: str) -> str:
    """Ask etcd for its version."""
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"etcd Version: (\S+)", said)
    return f"etcd {found[1] if found else said.strip()}"


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()
